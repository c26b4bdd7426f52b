/** Which charts show what the profiler measured of a machine. */

/** The groups that it reports, in the order of the charts. */
export const PROFILER_GROUPS = ["cpu", "memory", "gpu", "network", "disk"] as const;

export interface ProfilerChart {
  group: string;
  title: string;
  names: string[];
}

interface Kind {
  group: string;
  title: string;
  isOf: (name: string) => boolean;
}

const KINDS: readonly Kind[] = [
  { group: "cpu", title: "Processors in use (%)", isOf: (name) => name === "cpu_util_simple" },
  { group: "memory", title: "Free memory (GiB)", isOf: (name) => name === "memory_free" },
  { group: "gpu", title: "GPUs in use (%)", isOf: (name) => name.startsWith("gpu_util_") },
  { group: "gpu", title: "Free memory of GPUs (GiB)", isOf: (name) => name.startsWith("gpu_free_memory_") },
  { group: "network", title: "Network (bytes/s)", isOf: (name) => name.startsWith("net_throughput_") },
  { group: "disk", title: "Disks (bytes/s)", isOf: (name) => name.startsWith("disk_throughput_") },
  { group: "disk", title: "Disks (operations/s)", isOf: (name) => name === "disk_iops" },
];

/** The charts for these names of metrics, by what they measure; one of a kind of its own for others. */
export function profilerCharts(names: readonly { group: string; name: string }[]): ProfilerChart[] {
  const byText = (a: string, b: string) => a.localeCompare(b, undefined, { numeric: true });
  return PROFILER_GROUPS.flatMap((group) => {
    const own = names.filter((one) => one.group === group).map(({ name }) => name).sort(byText);
    const kinds = KINDS.filter((kind) => kind.group === group);
    const charts = kinds
      .map(({ title, isOf }) => ({ group, title, names: own.filter(isOf) }))
      .filter((chart) => chart.names.length > 0);
    const others = own.filter((name) => !kinds.some(({ isOf }) => isOf(name)));
    return [...charts, ...others.map((name) => ({ group, title: `${group}: ${name}`, names: [name] }))];
  });
}

/** The unit at the end of a title: `%` of `GPUs in use (%)`; "" without a unit. */
export function unitOf(title: string): string {
  return /\(([^()]+)\)$/.exec(title)?.[1] ?? "";
}
