// The curves of a run as one SVG, a chart for each measure, and as lines of text for the terminal.

import type { Point, Span, Verdict } from "./judge.ts";
import { measures, shown } from "./measures.ts";

interface Chart {
  readonly name: string;
  readonly unit: string;
  readonly points: readonly Point[];
  readonly behind?: readonly Point[] | undefined;
  readonly verdict: Verdict | undefined;
}

const columns = 3;
const chart = { width: 430, height: 230, left: 58, right: 14, top: 46, bottom: 36 } as const;
const head = 64;
const tickCount = 4;
const sparkWidth = 48;
const blocks = "▁▂▃▄▅▆▇█";
const colors = { steady: "#2a7d3f", grows: "#c62828", unclear: "#b26a00", "not measured": "#777777" } as const;

export function chartsOf(series: ReadonlyMap<string, readonly Point[]>, verdicts: readonly Verdict[]): Chart[] {
  const charts: Chart[] = [];
  for (const { name: wanted, unit } of [...measures, ...shown]) {
    for (const [name, points] of series) {
      const verdict = verdicts.find(({ measure }) => measure.name === name);
      const mine =
        name === wanted || (verdict !== undefined && name.startsWith(`${wanted} `) && verdict.measure.unit === unit);
      if (!mine || charts.some((other) => other.name === name)) continue;
      // What the heap does between collections, behind what lives of it.
      const behind = wanted === "live heap" ? series.get(name.replace("live ", "")) : undefined;
      charts.push({ name, unit, points, verdict, behind });
    }
  }
  return charts;
}

export function svgOf(charts: readonly Chart[], span: Span, title: string): string {
  const rows = Math.ceil(charts.length / columns);
  const width = columns * chart.width;
  const height = head + rows * chart.height;
  const body = charts.map((one, i) => {
    const x = (i % columns) * chart.width;
    const y = head + Math.floor(i / columns) * chart.height;
    return `<g transform="translate(${x} ${y})">${chartSvg(one, span)}</g>`;
  });
  const legend =
    "grey: samples · dots: what each window says · line: fitted slope, dashed where it is outside of the judged time · shaded: warm-up";
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">
<rect width="${width}" height="${height}" fill="#ffffff"/>
<text x="16" y="26" font-size="17" font-weight="bold">${escaped(title)}</text>
<text x="16" y="46" fill="#555555">${legend}</text>
${body.join("\n")}
</svg>
`;
}

function chartSvg({ name, unit, points, behind, verdict }: Chart, span: Span): string {
  const inner = { width: chart.width - chart.left - chart.right, height: chart.height - chart.top - chart.bottom };
  const values = [...points, ...(behind ?? [])].map(({ value }) => value);
  const { from, to, step } = axis(values);
  const minutes = axis([0, span.seconds / 60]);
  const x = (seconds: number) => chart.left + (Math.min(seconds, span.seconds) / span.seconds) * inner.width;
  const y = (value: number) => chart.top + (1 - (value - from) / (to - from)) * inner.height;
  const bottom = chart.top + inner.height;
  const line = (of: readonly Point[]) => of.map((p) => `${x(p.seconds).toFixed(1)},${y(p.value).toFixed(1)}`).join(" ");
  const parts = [
    `<rect x="${chart.left}" y="${chart.top}" width="${x(span.warmUpSeconds) - chart.left}" height="${inner.height}" fill="#f1f1f1"/>`,
    `<text x="${chart.left}" y="16" font-size="13" font-weight="bold">${escaped(name)}${unit === "" ? "" : ` [${unit}]`}</text>`,
  ];
  for (let value = from; value <= to + step / 2; value += step) {
    parts.push(
      `<line x1="${chart.left}" x2="${chart.left + inner.width}" y1="${y(value)}" y2="${y(value)}" stroke="#dddddd"/>`,
      `<text x="${chart.left - 6}" y="${y(value) + 4}" text-anchor="end">${rounded(value, step)}</text>`,
    );
  }
  for (let minute = 0; minute <= span.seconds / 60 + 1e-9; minute += minutes.step) {
    parts.push(
      `<text x="${x(minute * 60)}" y="${bottom + 14}" text-anchor="middle">${rounded(minute, minutes.step)}</text>`,
      `<line x1="${x(minute * 60)}" x2="${x(minute * 60)}" y1="${bottom}" y2="${bottom + 3}" stroke="#555555"/>`,
    );
  }
  parts.push(
    `<text x="${chart.left + inner.width}" y="${bottom + 28}" text-anchor="end" fill="#555555">minutes</text>`,
  );
  if (behind !== undefined) parts.push(`<polyline points="${line(behind)}" fill="none" stroke="#d9d2e9"/>`);
  parts.push(`<polyline points="${line(points)}" fill="none" stroke="#9e9e9e"/>`);
  if (verdict !== undefined) parts.push(...fitted(verdict, span, { x, y, unit }));
  parts.push(
    `<rect x="${chart.left}" y="${chart.top}" width="${inner.width}" height="${inner.height}" fill="none" stroke="#555555"/>`,
  );
  return parts.join("\n");
}

interface Scale {
  readonly x: (seconds: number) => number;
  readonly y: (value: number) => number;
  readonly unit: string;
}

function fitted(verdict: Verdict, span: Span, { x, y, unit }: Scale): string[] {
  const color = colors[verdict.finding];
  const at = (seconds: number) => verdict.intercept + verdict.slope * seconds;
  const dots = verdict.windows.map((p) => `<circle cx="${x(p.seconds)}" cy="${y(p.value)}" r="2" fill="${color}"/>`);
  return [
    ...dots,
    `<line x1="${x(span.warmUpSeconds)}" y1="${y(at(span.warmUpSeconds))}" x2="${x(span.seconds)}" y2="${y(at(span.seconds))}" stroke="${color}" stroke-width="2"/>`,
    `<text x="${chart.left}" y="32" fill="${color}">${escaped(slopeText(verdict, unit))}</text>`,
  ];
}

/** The slope with its interval and its bound, per day. */
export function slopeText(
  { finding, perDay, lowPerDay, highPerDay, boundPerDay, measure }: Verdict,
  unit: string,
): string {
  const interval = `${short(perDay)} (${short(lowPerDay)} to ${short(highPerDay)}) ${unit}/day`.replace(" /", "/");
  const bound = measure.direction === -1 ? `at least −${short(boundPerDay).slice(1)}` : `at most ${short(boundPerDay)}`;
  return `${finding}: ${interval}, ${bound}`;
}

export function textOf(charts: readonly Chart[]): string {
  const widest = Math.max(...charts.map(({ name }) => name.length));
  return charts
    .map(({ name, unit, points, verdict }) => {
      const values = points.map(({ value }) => value);
      const range = `${figure(Math.min(...values))}–${figure(Math.max(...values))} ${unit}`.trimEnd();
      const found = verdict === undefined ? "" : slopeText(verdict, unit);
      return `${name.padEnd(widest)} ${spark(values)} ${range.padEnd(20)} ${found}`.trimEnd();
    })
    .join("\n");
}

function spark(values: readonly number[]): string {
  const least = Math.min(...values);
  const reach = Math.max(...values) - least || 1;
  const count = Math.min(sparkWidth, values.length);
  let text = "";
  for (let i = 0; i < count; i++) {
    const part = values.slice(Math.floor((i * values.length) / count), Math.floor(((i + 1) * values.length) / count));
    const mean = part.reduce((sum, value) => sum + value, 0) / part.length;
    text += blocks[Math.min(blocks.length - 1, Math.floor(((mean - least) / reach) * blocks.length))];
  }
  return text.padEnd(sparkWidth);
}

/** Round numbers around the values, a few steps apart. */
export function axis(values: readonly number[]): { from: number; to: number; step: number } {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const reach = most - least || Math.abs(most) || 1;
  const rough = reach / tickCount;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((candidate) => candidate * power >= rough) ?? 10);
  const from = Math.floor(least / step) * step;
  const to = Math.ceil(most / step) * step;
  return { from, to: to > from ? to : from + step, step };
}

export function rounded(value: number, step: number): string {
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step))));
}

function figure(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

function short(value: number): string {
  return `${value < 0 ? "−" : "+"}${figure(Math.abs(value))}`;
}

export function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
