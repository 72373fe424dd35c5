// Deliberate faults of the node and of its client, each a real breach of a promise that compiles. mutate.mjs applies them one at a time
// and asks the simulator and the tests; mutations.test.ts keeps the list from rotting.
//
//   name     what `--only` takes
//   fault    in words
//   promise  which it breaks: G1…G11 of the guarantees, or what else is promised
//   file, find, replace   the text must occur exactly once in the file
//   also     further texts of the same fault
//   words    of the tests that should catch it, as `npm test -- word` takes them: asked before all the others

import { actorFaults } from "./actors.mjs";
import { clientFaults, frontFaults } from "./front.mjs";
import { mongoFaults } from "./mongo.mjs";
import { runtimeFaults } from "./runtime.mjs";
import { storeFaults } from "./store.mjs";

export const mutations = [
  ...actorFaults,
  ...runtimeFaults,
  ...storeFaults,
  ...mongoFaults,
  ...frontFaults,
  ...clientFaults,
];

/** Every text that a mutation replaces. */
export function editsOf({ file, find, replace, also = [] }) {
  return [{ file, find, replace }, ...also];
}

/** What is wrong with an edit of this source text; undefined when it can be made. */
export function faultOf({ file, find, replace }, text) {
  const count = text.split(find).length - 1;
  if (count !== 1) return `${file} has this text ${count} times, not once: ${find}`;
  return find === replace ? `${file}: nothing is replaced` : undefined;
}
