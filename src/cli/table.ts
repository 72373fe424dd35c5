// Text in columns. Widths are those of a terminal: what is drawn double counts double.

import { oneLine } from "./failures.ts";

const wide =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

export function textWidth(text: string): number {
  let width = 0;
  for (const char of text) width += wide.test(char) ? 2 : 1;
  return width;
}

/** At most so wide, with an ellipsis where something was left out. */
export function cut(text: string, width: number): string {
  if (text.length <= width / 2 || textWidth(text) <= width) return text;
  let kept = "";
  let used = 1;
  for (const char of text) {
    used += wide.test(char) ? 2 : 1;
    if (used > width) break;
    kept += char;
  }
  return `${kept}…`;
}

export function pad(text: string, width: number, align: "left" | "right" = "left"): string {
  const space = " ".repeat(Math.max(0, width - textWidth(text)));
  return align === "left" ? text + space : space + text;
}

export type Cell = string | number;

/** A line of headings and one for each row. Numbers stand to the right. */
export function tableLines(
  headings: readonly string[],
  rows: readonly (readonly Cell[])[],
  head: (line: string) => string = (line) => line,
): string[] {
  const texts = rows.map((row) => row.map((cell) => (typeof cell === "number" ? count(cell) : oneLine(cell))));
  const widths = headings.map((heading, i) =>
    Math.max(textWidth(heading), ...texts.map((row) => textWidth(row[i] ?? ""))),
  );
  const numeric = headings.map((_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === "number"));
  const line = (cells: readonly string[]) =>
    cells
      .map((text, i) => pad(text, widths[i] ?? 0, numeric[i] ? "right" : "left"))
      .join("  ")
      .trimEnd();
  return [head(line(headings)), ...texts.map(line)];
}

/** 1234567 as 1,234,567. */
export function count(value: number): string {
  return Number.isFinite(value) ? value.toLocaleString("en-US", { maximumFractionDigits: 1 }) : "?";
}

/** `1 event`, `1,234 events`. */
export function many(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytesText(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : Math.round(value * 10) / 10} ${units[unit]}`;
}
