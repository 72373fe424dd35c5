// narthex token: a token that nobody can guess.

import { randomBytes } from "node:crypto";
import type { Register } from "./context.ts";

const tokenBytes = 32;

export const registerToken: Register = (program, run) => {
  program
    .command("token")
    .summary("make a random token")
    .description("Make a random token of 32 bytes. It is stored nowhere.")
    .addHelpText(
      "after",
      `
Examples:
  narthex token > token.txt
  WS_TOKEN=$(cat token.txt) HOST=0.0.0.0 npx narthex      # the node asks for it
  narthex topics --token-file token.txt                   # and these commands show it`,
    )
    .action(() =>
      run(async (context) => {
        const token = randomBytes(tokenBytes).toString("base64url");
        context.out(context.json ? JSON.stringify({ token }) : token);
        if (context.tty) {
          context.note("Give it to the node as WS_TOKEN, and to these commands as NARTHEX_TOKEN or in a --token-file.");
        }
      }),
    );
};
