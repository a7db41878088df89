// Numbers and times as people read them. Integers that JavaScript would round come as text.

const UNKNOWN = "–";

function grouped(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  const text = typeof value === "string" ? value : Math.round(value).toString();
  return text.replace(/\B(?=(\d{3})+$)/g, ",");
}

function sized(value) {
  if (value === null || value === undefined || Number.isNaN(Number(value))) return UNKNOWN;
  let amount = Number(value);
  if (Math.abs(amount) < 1024) return `${Math.round(amount)} B`;
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    if (Math.abs(amount) < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  return `${amount.toFixed(1)} ${unit}`;
}

function dollars(value) {
  if (value === 0) return "$0";
  if (value < 0.01) return "< $0.01";
  return value < 1000 ? `$${value.toFixed(2)}` : `$${grouped(value)}`;
}

function plural(count, one, many = `${one}s`) {
  return `${grouped(count)} ${Number(count) === 1 ? one : many}`;
}

// Seconds since 1970 as a time in UTC.
function moment(seconds) {
  const time = new Date(seconds * 1000);
  if (!Number.isFinite(seconds) || Number.isNaN(time.getTime())) return UNKNOWN;
  return time.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

function dated(day) {
  return moment(day * 86400).split(" ")[0];
}

function lasting(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const sign = ms < 0 ? "−" : "";
  const seconds = Math.abs(Number(ms)) / 1000;
  const units = [["y", 31557600], ["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  for (const [number, [name, size]] of units.entries()) {
    if (seconds < size) continue;
    const whole = Math.floor(seconds / size);
    const below = units[number + 1];
    const rest = below ? Math.floor((seconds - whole * size) / below[1]) : 0;
    return `${sign}${grouped(whole)} ${name}${rest && whole < 100 ? ` ${rest} ${below[0]}` : ""}`;
  }
  return "under 1 s";
}

function times(original, stored) {
  return Number(stored) ? `${(Number(original) / Number(stored)).toFixed(2)} ×` : UNKNOWN;
}
