// Programs of the machine that a test or a bench needs.

import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";

/** Where a program of this name would be. */
export function onPath(name: string, env: NodeJS.ProcessEnv = process.env): readonly string[] {
  const folders = (env.PATH ?? "").split(delimiter).filter((folder) => folder !== "");
  return folders.map((folder) => join(folder, name));
}

export function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}
