// What the file system refuses, as one line that says which file and why, without the names of calls or of files that are none of the
// user's business.

import { dirname } from "node:path";
import { CliError, exitCodes } from "./context.ts";

const reasons: Readonly<Record<string, string>> = {
  EACCES: "permission denied",
  EPERM: "permission denied",
  EROFS: "it is on a disk that is read-only",
  ENOSPC: "the disk is full",
  EDQUOT: "the disk quota is used up",
  EFBIG: "it would be larger than the file system allows",
  EIO: "the disk fails",
  EISDIR: "it is a folder",
  ENOTDIR: "a part of its path is not a folder",
  ENAMETOOLONG: "its name is too long",
  EMFILE: "too many files are open",
  ENFILE: "too many files are open",
};

/** Why, in a few words. */
export function diskReason(error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  return code === undefined ? error.message : (reasons[code] ?? code);
}

/** For a `catch`: what the disk refused becomes a line about the file; everything else goes on as it is. */
export function unwritable(path: string, advice = ""): (error: Error) => never {
  return (error) => {
    if (!isOfDisk(error)) throw error;
    if (error.code === "ENOENT") throw new CliError(`${dirname(path)} does not exist`, exitCodes.missing);
    throw new CliError(`${path} cannot be written: ${diskReason(error)}${advice}`);
  };
}

export function unreadable(path: string): (error: Error) => never {
  return (error) => {
    if (!isOfDisk(error)) throw error;
    if (error.code === "ENOENT") throw new CliError(`${path} does not exist`, exitCodes.missing);
    throw new CliError(`${path} cannot be read: ${diskReason(error)}`);
  };
}

/** Calls of the system fail with their name; what the node or the client refuses has none. */
function isOfDisk(error: NodeJS.ErrnoException): error is NodeJS.ErrnoException {
  return typeof error.code === "string" && typeof error.syscall === "string";
}
