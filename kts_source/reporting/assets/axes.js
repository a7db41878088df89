// Ticks and positions of the two axes.

const SPANS_S = [
  1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2629800, 7889400,
  15778800, 31557600, 63115200, 157788000, 315576000,
];

function timeTicks(low, high, most) {
  const step = SPANS_S.find((span) => (high - low) / span <= most) || (high - low) / most;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    const text = moment(at);
    found.push([at, step < 60 ? text.slice(11, 19) : step < 86400 ? text.slice(5, 16) : step < 2600000 ? text.slice(0, 10) : text.slice(0, 7)]);
  }
  return found;
}

function offsetTicks(low, high, most) {
  const rough = Math.max((high - low) / most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push([at, grouped(at)]);
  return found;
}

// The whole range of an axis. Times that are nonsense are left out: they would squeeze the rest.
function wholeRange(kind, facts, segments) {
  let low = Infinity, high = -Infinity;
  const widen = (from, to) => {
    low = Math.min(low, from);
    high = Math.max(high, to);
  };
  if (kind === "time") {
    const now = facts.made_ms / 1000;
    for (let i = 0; i < segments.count; i++) {
      if (segments.newest[i] > 86400 && segments.newest[i] <= now + 86400) widen(segments.since[i], segments.newest[i]);
    }
  } else {
    for (let i = 0; i < segments.count; i++) widen(segments.start[i], segments.stop[i]);
    for (const part of facts.rows) {
      if (part.log_start !== null) widen(Number(part.log_start), Math.max(Number(part.tier_end), Number(part.high_watermark || 0)));
    }
  }
  if (low > high) [low, high] = kind === "time" ? [facts.made_ms / 1000 - 86400, facts.made_ms / 1000] : [0, 1];
  const room = Math.max((high - low) * 0.01, kind === "time" ? 60 : 1);
  return { low: low - (kind === "time" ? room : 0), high: high + room };
}

// When an offset of a partition was written, between the times of its segment; NaN where unknown.
function timeAt(segments, number, offset) {
  let found = NaN;
  for (let i = segments.first[number]; i < segments.first[number + 1]; i++) {
    if (segments.state[i] > 1 || Number.isNaN(segments.newest[i])) continue;
    if (segments.start[i] > offset) return Number.isNaN(found) ? segments.since[i] : found;
    const share = Math.min((offset - segments.start[i]) / (segments.stop[i] - segments.start[i]), 1);
    found = segments.since[i] + share * (segments.newest[i] - segments.since[i]);
  }
  return found;
}
