// STORE=mongo on a real server, a database of its own for each life of the data.

import type { Mongod } from "../support/mongod.ts";
import { type Environment, startProgram } from "./environment.ts";

export function mongoEnvironment(mongod: Mongod): Environment {
  let url = mongod.url();
  let databases = 1;
  return {
    name: "mongo",
    // From outside nothing shows that a process has come to the data: it is taken to be there at once.
    start: (choice) => startProgram({ STORE: "mongo", MONGO_URL: url }, "/nowhere", choice, () => true),
    reset() {
      url = mongod.url();
      databases++;
    },
    observe: () => undefined,
    facts: () => [["databases", databases]],
    keep: () => `${url}, which ends with this run`,
    remove: () => undefined,
  };
}
