/** Labels as marks. */

export function Labels({ labels }: { labels: string[] }) {
  return <>{labels.map((label) => <span key={label} class="label">{label}</span>)}</>;
}
