import { openMemoryStore } from "../../src/store/memory.ts";
import { storeConformance } from "../conformance/store.ts";

storeConformance("memory", {
  kind: "memory",
  durability: "memory",
  open: async () => openMemoryStore(),
  reopen: async (store) => store,
  dispose: (store) => store.close(),
});
