// The tables of the page.

function topicTable(facts, segments, onTopic) {
  const topics = new Map();
  for (const part of facts.rows) {
    const one = topics.get(part.topic) || { topic: part.topic, partitions: 0, segments: 0, stored: 0, original: 0, holes: 0, undecided: 0, skipped: 0, oldest: NaN, newest: NaN };
    one.partitions += 1;
    one.segments += part.segments || 0;
    one.stored += Number(part.stored_bytes);
    one.original += Number(part.original_bytes);
    one.holes += part.holes_count;
    one.undecided += part.undecided_count;
    one.skipped += part.skipped_count;
    for (let i = segments.first[part.number]; i < segments.first[part.number + 1]; i++) {
      if (segments.state[i] || Number.isNaN(segments.newest[i])) continue;
      if (!(one.oldest <= segments.newest[i])) one.oldest = segments.newest[i];
      if (!(one.newest >= segments.newest[i])) one.newest = segments.newest[i];
    }
    topics.set(part.topic, one);
  }
  const columns = [
    { title: "Topic", value: (one) => one.topic },
    { title: "Partitions", value: (one) => grouped(one.partitions), sort: (one) => one.partitions, number: true },
    { title: "Segments", value: (one) => grouped(one.segments), sort: (one) => one.segments, number: true },
    { title: "Stored", value: (one) => sized(one.stored), sort: (one) => one.stored, number: true },
    { title: "Original", value: (one) => sized(one.original), sort: (one) => one.original, number: true },
    { title: "Compression", value: (one) => times(one.original, one.stored), sort: (one) => one.original / one.stored, number: true },
    { title: "First segment's newest record", value: (one) => moment(one.oldest), sort: (one) => one.oldest },
    { title: "Newest record", value: (one) => moment(one.newest), sort: (one) => one.newest },
    { title: "Holes", value: (one) => flagged(one.holes, "bad"), sort: (one) => one.holes, number: true },
    { title: "Undecided", value: (one) => flagged(one.undecided, "warn"), sort: (one) => one.undecided, number: true },
    { title: "Not read", value: (one) => grouped(one.skipped), sort: (one) => one.skipped, number: true },
  ];
  return new SortedTable("Topics", columns, [...topics.values()], { onRow: onTopic, order: { column: 3, down: true } });
}

function flagged(count, kind) {
  return count ? make("span", { class: kind }, grouped(count)) : "0";
}

function partitionTable(facts, onPart) {
  const exact = (name) => ({ value: (part) => grouped(part[name]), sort: (part) => (part[name] === null ? null : Number(part[name])), number: true });
  const columns = [
    { title: "Partition", value: (part) => part.name, sort: (part) => part.number },
    { title: "Log start", ...exact("log_start") },
    { title: "Tier end", ...exact("tier_end") },
    { title: "Last stable", ...exact("last_stable_offset") },
    { title: "Segments", ...exact("segments") },
    { title: "Stored", value: (part) => sized(part.stored_bytes), sort: (part) => Number(part.stored_bytes), number: true },
    { title: "Compression", value: (part) => times(part.original_bytes, part.stored_bytes), sort: (part) => Number(part.original_bytes) / Number(part.stored_bytes), number: true },
    { title: "Holes", value: (part) => flagged(part.holes_count, "bad"), sort: (part) => part.holes_count, number: true },
    { title: "Not read", value: (part) => grouped(part.skipped_count), sort: (part) => part.skipped_count, number: true },
    { title: "Orphans", value: (part) => grouped(part.orphans_count), sort: (part) => part.orphans_count, number: true },
    { title: "Ends", value: (part) => part.reason },
  ];
  return new SortedTable("Partitions", columns, [...facts.rows], { onRow: onPart });
}

function lagTable(facts, onPart) {
  const behind = (part) => (part.high_watermark === null ? null : Number(part.high_watermark) - Number(part.tier_end));
  const undecided = (part) => Number(part.tier_end) - Number(part.last_stable_offset);
  const columns = [
    { title: "Partition", value: (part) => part.name, sort: (part) => part.number },
    { title: "Newest record", value: (part) => (part.newest_age_ms === null ? UNKNOWN : moment(Math.floor(Number(part.tier_end_timestamp_ms) / 1000))), sort: (part) => Number(part.tier_end_timestamp_ms) },
    { title: "Its age", value: (part) => lasting(part.newest_age_ms), sort: (part) => part.newest_age_ms, number: true },
    { title: "Copied after", value: (part) => lasting(part.copy_delay_ms), sort: (part) => part.copy_delay_ms, number: true },
    { title: "Offsets that read_committed lacks", value: (part) => flagged(undecided(part), "warn"), sort: undecided, number: true },
  ];
  if (facts.rows.some((part) => part.high_watermark !== null)) {
    columns.push({ title: "Offsets behind the log's end", value: (part) => grouped(behind(part)), sort: behind, number: true });
  }
  return new SortedTable("What lags", columns, [...facts.rows], { onRow: onPart, portion: 10, order: { column: 2, down: true } });
}

function retentionTable(facts) {
  const columns = [
    { title: "Retention", value: (one) => `${grouped(one.retention_days)} days`, sort: (one) => one.retention_days },
    { title: "Segments older now", value: (one) => grouped(one.older_segments), sort: (one) => one.older_segments, number: true },
    { title: "Their bytes", value: (one) => sized(one.older_bytes), sort: (one) => Number(one.older_bytes), number: true },
    { title: "$ a month for them", value: (one) => dollars(one.older_cost), sort: (one) => one.older_cost, number: true },
    { title: "Bytes in the long run", value: (one) => sized(one.steady_bytes), sort: (one) => Number(one.steady_bytes), number: true },
    { title: "$ a month for these", value: (one) => dollars(one.steady_cost), sort: (one) => one.steady_cost, number: true },
  ];
  return new SortedTable("Retention", columns, facts.retentions);
}

function costTable(facts) {
  const { cost } = facts;
  const rows = [
    ...Object.entries(cost.served_bytes).map(([name, size]) => [`Logs that are served, ${name}`, size]),
    ...Object.entries(cost.unserved_bytes).map(([name, size]) => [`Logs that are not read, ${name}`, size]),
    ["Side files", cost.side_file_bytes],
    ["Objects of no segment", cost.orphan_bytes],
  ];
  const columns = [
    { title: "Stored", value: (row) => row[0] },
    { title: "Bytes", value: (row) => sized(row[1]), sort: (row) => Number(row[1]), number: true },
  ];
  return new SortedTable("Storage", columns, rows);
}

function findingTable(audit, onFinding) {
  const where = (one) => (one.start === null ? "" : `[${grouped(one.start)}, ${one.stop === null ? "…" : grouped(one.stop)})`);
  const rank = { error: 0, warning: 1, info: 2 };
  const classes = { error: "bad", warning: "warn", info: "calm" };
  const words = (one) => make(
    "div", {}, make("div", {}, one.detail), make("div", { class: "hint" }, one.meaning),
    make("div", { class: "hint" }, `To do: ${one.advice}`),
    one.objects.length ? make("details", {}, make("summary", {}, plural(one.objects.length, "object")), make("code", {}, one.objects.slice(0, 50).join("\n"))) : null,
  );
  const columns = [
    { title: "Finding", value: (one) => one.kind },
    { title: "Severity", value: (one) => make("span", { class: classes[one.severity] || null }, one.severity), sort: (one) => rank[one.severity] },
    { title: "Partition", value: (one) => `${one.topic}-${one.partition}` },
    { title: "Offsets", value: where, sort: (one) => Number(one.start) },
    { title: "Bytes", value: (one) => sized(one.storedBytes), sort: (one) => Number(one.storedBytes), number: true },
    { title: "What it is", value: words, sort: (one) => one.detail },
  ];
  return new SortedTable("Findings", columns, audit.findings, { onRow: onFinding });
}

function lockedTable(facts) {
  const columns = [
    { title: "Partition", value: (one) => `${one.topic}-${one.partition}` },
    { title: "Segments", value: (one) => grouped(one.segments), sort: (one) => one.segments, number: true },
    { title: "Stored", value: (one) => sized(one.stored_bytes), sort: (one) => Number(one.stored_bytes), number: true },
    { title: "Original", value: (one) => sized(one.original_bytes), sort: (one) => Number(one.original_bytes), number: true },
    { title: "Keys that are needed", value: (one) => one.keys_needed.join(", ") },
  ];
  return new SortedTable("Locked", columns, facts.locked);
}
