// The numbers of a bench as one SVG that reads well on a light and on a dark page: panels beside each other, in each a line for each series, with
// the median of the runs as its points and a bar from the least to the most.

import { axis, escaped, rounded } from "../../test/soak/picture.ts";
import { median } from "./report.ts";

export interface Panel {
  readonly title: string;
  readonly unit: string;
  /** What stands below each place of the x axis. */
  readonly ticks: readonly string[];
  readonly series: readonly Series[];
}

interface Series {
  readonly name: string;
  /** At each tick, what the runs gave. */
  readonly values: readonly (readonly number[])[];
}

export interface Chart {
  readonly title: string;
  readonly subtitle: string;
  /** What the ticks are. */
  readonly axis: string;
  readonly panels: readonly Panel[];
}

const size = { width: 360, height: 260, left: 62, right: 18, top: 44, bottom: 44 } as const;
const columns = 2;
const head = 62;
const legend = 30;
const inner = { width: size.width - size.left - size.right, height: size.height - size.top - size.bottom };
/** Told apart by those who see colours otherwise as well, on either ground. */
const colors = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"];
const style = `
text { fill: #1f2328; } .dim { fill: #59636e; } .ground { fill: #ffffff; } .grid { stroke: #d1d9e0; } .frame { stroke: #59636e; fill: none; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; } .dim { fill: #9198a1; } .ground { fill: #0d1117; } .grid { stroke: #3d444d; } .frame { stroke: #9198a1; }
}`;

export function chartSvg({ title, subtitle, axis: xName, panels }: Chart): string {
  const width = columns * size.width;
  const height = head + Math.ceil(panels.length / columns) * size.height + legend;
  const body = panels.map((panel, i) => {
    const x = (i % columns) * size.width;
    const y = head + Math.floor(i / columns) * size.height;
    return `<g transform="translate(${x} ${y})">${panelSvg(panel, xName)}</g>`;
  });
  const names = panels[0].series.map(({ name }, i) => {
    const x = size.left + (i * (width - size.left)) / panels[0].series.length;
    const y = height - legend / 2;
    return `<circle cx="${x}" cy="${y - 4}" r="4" fill="${colorOf(i)}"/><text x="${x + 10}" y="${y}">${escaped(name)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">
<style>${style}</style>
<rect class="ground" width="${width}" height="${height}"/>
<text x="16" y="26" font-size="16" font-weight="bold">${escaped(title)}</text>
<text x="16" y="46" class="dim">${escaped(subtitle)}</text>
${body.join("\n")}
${names.join("\n")}
</svg>
`;
}

function panelSvg({ title, unit, ticks, series }: Panel, xName: string): string {
  const { from, to, step } = axis([0, ...series.flatMap(({ values }) => values.flat())]);
  const x = (tick: number) => size.left + ((tick + 0.5) / ticks.length) * inner.width;
  const y = (value: number) => size.top + (1 - (value - from) / (to - from)) * inner.height;
  const bottom = size.top + inner.height;
  const parts = [
    `<text x="${size.left}" y="24" font-size="13" font-weight="bold">${escaped(title)} [${escaped(unit)}]</text>`,
  ];
  for (let value = from; value <= to + step / 2; value += step) {
    parts.push(
      `<line class="grid" x1="${size.left}" x2="${size.left + inner.width}" y1="${y(value)}" y2="${y(value)}"/>`,
      `<text x="${size.left - 6}" y="${y(value) + 4}" text-anchor="end">${rounded(value, step)}</text>`,
    );
  }
  ticks.forEach((tick, i) => {
    parts.push(`<text x="${x(i)}" y="${bottom + 16}" text-anchor="middle">${escaped(tick)}</text>`);
  });
  parts.push(
    `<text class="dim" x="${size.left + inner.width / 2}" y="${bottom + 32}" text-anchor="middle">${escaped(xName)}</text>`,
  );
  series.forEach(({ values }, i) => {
    // Beside each other, so that no bar hides another.
    const shift = (i - (series.length - 1) / 2) * 6;
    const color = colorOf(i);
    const points = values.map((runs, tick) => ({ x: x(tick) + shift, y: y(median(runs)), runs }));
    parts.push(
      `<polyline points="${points.map((p) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join(" ")}" fill="none" stroke="${color}" stroke-width="2"/>`,
    );
    for (const p of points) {
      parts.push(
        `<line x1="${p.x}" x2="${p.x}" y1="${y(Math.min(...p.runs))}" y2="${y(Math.max(...p.runs))}" stroke="${color}"/>`,
        `<circle cx="${p.x}" cy="${p.y}" r="3.5" fill="${color}"/>`,
      );
    }
  });
  parts.push(`<rect class="frame" x="${size.left}" y="${size.top}" width="${inner.width}" height="${inner.height}"/>`);
  return parts.join("\n");
}

function colorOf(series: number): string {
  return colors[series % colors.length];
}
