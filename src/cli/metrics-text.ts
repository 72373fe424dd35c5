// Numbers out of the text of /metrics.

/** The sum over all samples of a metric whose labels have these values; undefined if there is none. */
export function metricSum(
  text: string,
  name: string,
  labels: Readonly<Record<string, string>> = {},
): number | undefined {
  const values = metricValues(text, name, labels);
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0);
}

export function metricValues(text: string, name: string, labels: Readonly<Record<string, string>> = {}): number[] {
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  const values: number[] = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith(name)) continue;
    const parts = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (parts === null || parts[1] !== name) continue;
    if (wanted.every((pair) => parts[2]?.split(",").includes(pair))) values.push(Number(parts[3]));
  }
  return values;
}
