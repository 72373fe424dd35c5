// Frames by the thousand from a seed, with the control client's rounds between them.

import { Attacker, type Tally } from "./attacker.ts";
import { Control } from "./control.ts";
import type { Target } from "./target.ts";

const attackersDefault = 8;
/** A connection is left for another after so many volleys, so that coming and going is tried as well. */
const volleysEach = 20;

export interface Campaign {
  readonly target: Target;
  readonly seed: number;
  readonly frames: number;
  readonly attackers?: number;
  /** For an answer to anybody. */
  readonly msMax: number;
  readonly until?: number;
  readonly onRound?: (sent: number, control: Control) => Promise<void>;
}

export async function runCampaign(campaign: Campaign): Promise<{ sent: number; tally: Tally; slowestMs: number }> {
  const { target, frames, msMax, attackers = attackersDefault, until = Number.POSITIVE_INFINITY } = campaign;
  const tally: Tally = new Map();
  const control = await Control.open(target);
  let { seed } = campaign;
  let sent = 0;
  while (sent < frames && performance.now() < until) {
    const seeds = Array.from({ length: attackers }, () => seed++);
    const all = await Promise.all(seeds.map((one) => Attacker.open(target, one)));
    for (let volley = 0; volley < volleysEach && sent < frames && performance.now() < until; volley++) {
      const [seen, ...counts] = await Promise.all([
        control.round(msMax),
        ...all.map((attacker, i) =>
          attacker.shoot(tally, msMax).catch((error: Error) => {
            throw new Error(`seed ${seeds[i]}, volley ${volley}: ${error.message}`);
          }),
        ),
      ]);
      for (const count of counts as number[]) sent += count;
      for (const attacker of all) attacker.learn(seen as { id: string; lease: string });
    }
    for (const attacker of all) attacker.close();
    const fault = target.fault();
    if (fault !== undefined) throw new Error(`seeds ${seeds[0]} to ${seeds.at(-1)}: ${fault}`);
    await campaign.onRound?.(sent, control);
  }
  await control.verify();
  await control.close();
  return { sent, tally, slowestMs: control.slowestMs };
}
