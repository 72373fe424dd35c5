// Colours of a terminal, or none.

import type { Context } from "./context.ts";

const sgr = { dim: 2, bold: 1, red: 31, green: 32, yellow: 33, blue: 34, magenta: 35, cyan: 36 } as const;

export type Paint = (style: keyof typeof sgr, text: string) => string;

export function painter({ color }: Pick<Context, "color">): Paint {
  return color ? (style, text) => (text === "" ? text : `\u001b[${sgr[style]}m${text}\u001b[0m`) : (_, text) => text;
}

/** A JSON text, or a part of one that was cut off. */
export function paintJson(text: string, paint: Paint): string {
  const token = /("(?:\\.|[^"\\])*"?)(\s*:)?|-?\d[\d.eE+-]*|\b(?:true|false|null)\b/g;
  return text.replace(token, (found, quoted: string | undefined, colon: string | undefined) => {
    if (colon !== undefined) return paint("cyan", quoted ?? "") + colon;
    if (quoted !== undefined) return paint("green", found);
    return paint(/^[tfn]/.test(found) ? "magenta" : "yellow", found);
  });
}
