// A registry with one package in it: this one, as it was packed. Everything else is at the registry that npm is set to, and a redirect
// says so. With `npm_config_registry` set to it, `npm install narthex` does what it will do once the package is published.

import { readFileSync } from "node:fs";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Packed } from "./package.ts";

export interface Registry {
  readonly url: string;
  close(): Promise<void>;
}

export async function serveRegistry(packed: Packed, upstream: string): Promise<Registry> {
  const { name, version, integrity, shasum, manifest, file } = packed;
  const tarball = readFileSync(file);
  const tarballPath = `/${name}/-/${name}-${version}.tgz`;
  const server = createServer((req, res) => {
    const path = decodeURIComponent((req.url ?? "/").split("?")[0]!);
    if (path === tarballPath) return answer(res, "application/octet-stream", tarball);
    if (path === `/${name}`) {
      const dist = { tarball: `http://${req.headers.host}${tarballPath}`, integrity, shasum };
      const document = {
        name,
        "dist-tags": { latest: version },
        versions: { [version]: { ...manifest, _id: `${name}@${version}`, dist } },
      };
      return answer(res, "application/json", JSON.stringify(document));
    }
    // The body of a request is sent again to the place that a 307 names.
    res.writeHead(307, {
      location: new URL((req.url ?? "/").replace(/^\/+/, ""), `${upstream.replace(/\/*$/, "")}/`).href,
    });
    res.end();
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", resolve);
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Not to be kept: the next run has other bytes under the same version. */
function answer(res: ServerResponse, type: string, body: string | Uint8Array): void {
  res.writeHead(200, { "content-type": type, "cache-control": "no-store" }).end(body);
}
