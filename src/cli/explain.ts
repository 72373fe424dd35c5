// narthex explain: one sentence why a group is not getting events.

import { checkGroup, checkTopic, query } from "./arguments.ts";
import { exitCodes, type Register } from "./context.ts";
import { oneLine } from "./failures.ts";

interface Explanation {
  readonly cause: string;
  readonly sentence: string;
}

export const registerExplain: Register = (program, run) => {
  program
    .command("explain")
    .summary("say why a group is not getting events")
    .description("Say in one sentence what a group waits for. The numbers behind it come with --json.")
    .argument("<topic>")
    .argument("<group>")
    .addHelpText("after", "\nExample:\n  narthex explain orders billing")
    .action((topic: string, group: string) =>
      run(async (context) => {
        const path = `/explain?${query({ topic: checkTopic(topic), group: checkGroup(group) })}`;
        const explanation = await context.getJson<Explanation>(path);
        context.out(context.json ? JSON.stringify(explanation) : oneLine(explanation.sentence));
        return explanation.cause === "unknown_group" ? exitCodes.missing : exitCodes.ok;
      }),
    );
};
