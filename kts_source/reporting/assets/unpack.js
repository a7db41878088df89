// Facts and columns from the text that packing.py describes.

async function unpack(text) {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(data.buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length)));
  const count = facts.count;
  const columns = {};
  facts.columns.forEach((name, number) => {
    const from = 4 + length + number * 8 * count;
    columns[name] = numbers(data.subarray(from, from + 8 * count), count);
  });
  const { names, rows } = facts.partitions;
  facts.rows = rows.map((row, number) => {
    const part = { number };
    names.forEach((name, place) => { part[name] = row[place]; });
    part.name = `${part.topic}-${part.partition}`;
    return part;
  });
  return { facts, segments: segmentsOf(columns, count, facts.rows.length) };
}

function numbers(planes, count) {
  const found = new Float64Array(count);
  let total = 0;
  for (let i = 0; i < count; i++) {
    let folded = 0;
    for (let plane = 7; plane >= 0; plane--) folded = folded * 256 + planes[plane * count + i];
    total += folded % 2 ? -(folded + 1) / 2 : folded / 2;
    found[i] = total;
  }
  return found;
}

// Adds what follows from the columns: offsets, stored bytes, times of copies, where the rows of a
// partition begin, and the time from which a segment is drawn: the largest timestamp before it.
function segmentsOf(columns, count, partitions) {
  const { partition, gap, length, original, saved, newest, delay, state, flags } = columns;
  const start = new Float64Array(count);
  const stop = new Float64Array(count);
  const stored = new Float64Array(count);
  const copied = new Float64Array(count);
  const since = new Float64Array(count);
  const first = new Uint32Array(partitions + 1).fill(count);
  let last = -1;
  let latest = NaN;
  for (let i = 0; i < count; i++) {
    start[i] = (i ? stop[i - 1] : 0) + gap[i];
    stop[i] = start[i] + length[i];
    stored[i] = original[i] - saved[i];
    copied[i] = flags[i] & 4 ? newest[i] + delay[i] : NaN;
    for (; last < partition[i]; latest = NaN) first[++last] = i;
    since[i] = newest[i] < 0 ? NaN : Math.min(Number.isNaN(latest) ? newest[i] : latest, newest[i]);
    if (newest[i] >= 0 && state[i] < 2) latest = newest[i];
  }
  for (let i = 0; i < count; i++) if (newest[i] < 0) newest[i] = NaN;
  return { ...columns, start, stop, stored, copied, since, first, count };
}
