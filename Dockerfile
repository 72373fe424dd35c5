# docker build -t narthex .
# docker run -d --init -p 8090:8090 -e WS_TOKEN=… -v narthex:/data --stop-timeout 20 narthex
#
# The node listens beyond the container, and it does that only with a token: without WS_TOKEN it says so in one line and ends.
# Arguments behind the name of the image are those of `narthex`.
#
# Debian and not Alpine: the image is larger by some 40 MB, but Node is built and tested for glibc first, and for musl the storage
# library lmdb ships only its generic build.

FROM node:20-slim AS build
WORKDIR /build
COPY package.json package-lock.json .npmrc ./
# Nothing has to be compiled: lmdb and esbuild come as packages built for the platform.
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY build.mjs tsconfig.json ./
COPY src ./src
RUN node build.mjs && rm -r dist/cjs dist/client* dist/narthex.js*
# What runs needs neither the tools, nor the builds of lmdb for another libc, nor what only readers of sources look at.
RUN npm prune --omit=dev --ignore-scripts --no-audit --no-fund \
  && find node_modules -name '*.musl.node' -delete \
  && find node_modules -type f ! -iname 'licen*' \( -name '*.map' -o -name '*.d.[cm]ts' -o -name '*.d.ts' -o -name '*.md' \) -delete

FROM node:20-slim
ENV NODE_ENV=production \
  HOST=0.0.0.0 \
  WS_PORT=8090 \
  HTTP_PORT=off \
  OPS_PORT=off \
  REPLAY_PORT=off \
  NARTHEX_DATA=/data
WORKDIR /app
COPY --from=build /build/package.json ./
COPY --from=build /build/node_modules ./node_modules
COPY --from=build /build/dist ./dist
# The program belongs to root and the data to the user who runs it.
RUN mkdir /data && chown node:node /data
USER node
VOLUME /data
EXPOSE 8090
# A start may wait 15 s for a predecessor on another host to prove that it lives, and reads its log after that.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.WS_PORT}/health/ready`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
# Node itself and no npm or shell in between: it is the one that gets SIGTERM, and drains.
ENTRYPOINT ["node", "--enable-source-maps", "/app/dist/main.js"]
