// A drawing of bars as SVG, by hand: a few rectangles and texts. It has no background of its own and two sets of colours, so that it reads on
// a light page and on a dark one.

export interface Bar {
  readonly name: string;
  /** Small, under the name. */
  readonly note: string;
  /** One for each column. */
  readonly values: readonly number[];
  /** Drawn in the accent's colour. */
  readonly ours: boolean;
}

export interface Bars {
  readonly title: string;
  /** Above each column of bars: what is drawn, and which way is good. */
  readonly columns: readonly string[];
  readonly bars: readonly Bar[];
  /** Under all of it. */
  readonly footer: string;
}

const width = 960;
const namesWidth = 300;
const valueWidth = 70;
const gap = 24;
const top = 78;
const rowHeight = 46;
const barHeight = 18;
const footerHeight = 30;

export function drawBars({ title, columns, bars, footer }: Bars): string {
  const height = top + bars.length * rowHeight + footerHeight;
  const columnWidth = (width - namesWidth - gap * columns.length) / columns.length;
  const longest = columnWidth - valueWidth;
  const lines = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escaped(title)}">`,
    `<style>${style}</style>`,
    text("title", 16, 28, title),
  ];
  const leftOf = (column: number) => namesWidth + gap + column * (columnWidth + gap);
  for (const [column, head] of columns.entries()) {
    lines.push(text("head", leftOf(column), top - 16, head));
  }
  for (const [row, { name, note, values, ours }] of bars.entries()) {
    const y = top + row * rowHeight;
    lines.push(text(ours ? "name ours" : "name", 16, y + 14, name), text("note", 16, y + 30, note));
    for (const [column, value] of values.entries()) {
      const most = Math.max(...bars.map((bar) => bar.values[column]));
      const length = Math.max(1, (value / most) * longest);
      const x = leftOf(column);
      lines.push(
        `<rect class="${ours ? "bar ours" : "bar"}" x="${x}" y="${y + 2}" width="${length.toFixed(1)}" height="${barHeight}" rx="2"/>`,
        text("value", Number((x + length + 6).toFixed(1)), y + 16, numberText(value)),
      );
    }
  }
  lines.push(text("note", 16, height - 12, footer), "</svg>");
  return `${lines.join("\n")}\n`;
}

const style = [
  "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}",
  ".title{font-size:17px;font-weight:600}.head{font-size:13px;font-weight:600}",
  ".name{font-size:14px}.name.ours{font-weight:600}.note{font-size:11px;fill:#59636e}.value{font-size:13px}",
  ".bar{fill:#8c959f}.bar.ours{fill:#0969da}",
  "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}.bar{fill:#656c76}.bar.ours{fill:#4493f8}}",
].join("");

function text(kind: string, x: number, y: number, words: string): string {
  return `<text class="${kind}" x="${x}" y="${y}">${escaped(words)}</text>`;
}

function numberText(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

function escaped(words: string): string {
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}
