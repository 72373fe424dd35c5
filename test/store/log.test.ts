import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { Store } from "../../src/store/store.ts";
import { storeConformance } from "../conformance/store.ts";

// The small one rolls, rewrites and removes segments all the time.
for (const segmentBytes of [4096, 16 * 1024 * 1024]) {
  const paths = new Map<Store, string>();
  const open = (path: string): Store => {
    const store = openLogStore({ path, segmentBytes });
    paths.set(store, path);
    return store;
  };
  storeConformance(`log with segments of ${segmentBytes}`, {
    kind: "log",
    durability: "fsync",
    open: async () => open(mkdtempSync(join(tmpdir(), "narthex-log-"))),
    async reopen(store) {
      await store.close();
      return open(paths.get(store) ?? "");
    },
    async dispose(store) {
      await store.close();
      rmSync(paths.get(store) ?? "", { recursive: true, force: true });
    },
  });
}
