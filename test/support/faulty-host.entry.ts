// The worker's program with a disk that fails on command: while the file named by NARTHEX_FAULT exists, what it says fails. Its text
// is `<calls> <code>`, with calls some of write, sync, create, joined by commas.

import { readFileSync } from "node:fs";
import { kinds } from "../../src/actors/kinds.ts";
import { type HostTask, runResident } from "../../src/runtime/resident.ts";
import { type Files, type LogFile, nodeFiles } from "../../src/store/log/files.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { StoreConfig } from "../../src/store/open.ts";

const command = process.env.NARTHEX_FAULT ?? "";

function fault(call: string): void {
  let text: string;
  try {
    text = readFileSync(command, "utf8");
  } catch {
    return;
  }
  const [calls, code] = text.trim().split(" ");
  if (calls.split(",").includes(call)) throw Object.assign(new Error(`${code}: injected at ${call}`), { code });
}

function faultyFile(file: LogFile): LogFile {
  return {
    path: file.path,
    size: () => file.size(),
    read: (target, position) => file.read(target, position),
    writeNow(bytes, position) {
      fault("write");
      file.writeNow(bytes, position);
    },
    async write(bytes, position) {
      fault("write");
      await file.write(bytes, position);
    },
    async datasync() {
      fault("sync");
      await file.datasync();
    },
    truncate: (length) => file.truncate(length),
    close: () => file.close(),
  };
}

function faultyFiles(files: Files): Files {
  return {
    ...files,
    async create(path) {
      fault("create");
      return faultyFile(await files.create(path));
    },
    open: async (path) => faultyFile(await files.open(path)),
  };
}

export default function host(task: HostTask): Promise<void> {
  const openStore = (config: StoreConfig) => {
    if (config.kind !== "log") throw new Error("only the log can fail here");
    return openLogStore({ ...config, files: faultyFiles(nodeFiles()) });
  };
  return runResident(task, { kinds, openStore });
}
