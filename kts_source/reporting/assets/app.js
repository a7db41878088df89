// The page, put together.

function tiles(facts) {
  const { totals, cost, growth, audit } = facts;
  const tile = (name, value, words, kind) => make(
    "div", { class: `tile ${kind || ""}` }, make("div", { class: "name" }, name), make("div", { class: "value" }, value), make("div", { class: "words" }, words),
  );
  const bad = (count, kind) => (Number(count) ? kind : "");
  const found = [
    tile("Served", plural(totals.segments, "segment"), `${plural(totals.topics, "topic")}, ${plural(totals.partitions, "partition")}`),
    tile("Stored", sized(totals.stored_bytes), `${grouped(totals.stored_bytes)} bytes; ${sized(totals.original_bytes)} original, ${times(totals.original_bytes, totals.stored_bytes)}`),
    tile("Growth", `${sized(growth.rate)} a day`, growth.rate_days ? `over ${plural(growth.rate_days, "day")} up to ${dated(growth.days.at(-1).day)}` : "nothing is dated"),
    tile("Storage", `${dollars(cost.monthly)} a month`, "all objects but manifests, at list prices of S3"),
    tile("Full read", dollars(cost.read_cost), `${plural(cost.read_requests, "request")}, ${sized(cost.read_bytes)}; within the region`),
    tile("Holes", grouped(totals.holes), totals.holes ? `${plural(totals.missing_offsets, "offset")} missing` : "no offset is missing", bad(totals.holes, "bad")),
    tile("Undecided", plural(totals.undecided, "transaction"), totals.undecided ? "read_committed ends before them" : "every transaction is decided", bad(totals.undecided, "warn")),
    tile("Not read", plural(totals.skipped, "segment"), `${plural(totals.orphans, "orphan")}, ${plural(totals.unverifiable, "unsure gap")}`),
  ];
  if (facts.locked.length) found.push(tile("Locked", plural(facts.locked.length, "partition"), "private keys are missing; not counted", "warn"));
  if (audit) {
    const { error, warning, info } = audit.counts;
    found.push(tile("Audit", error ? plural(error, "error") : "no error", `${plural(warning, "warning")}, ${info} info; level ${audit.level}, ${moment(audit.auditedMs / 1000)}`, error ? "bad" : warning ? "warn" : ""));
  }
  return make("div", { class: "tiles" }, ...found);
}

function legendOf(lanes, facts) {
  const item = (colour, text, kind = "") => make("span", { class: "item" }, make("i", { class: `swatch s-${colour} ${kind}` }), text);
  const found = lanes.ways[lanes.way].legend().map(([colour, text]) => item(colour, text));
  const { totals } = facts;
  if (totals.holes) found.push(item("hole", "hole"));
  if (totals.unverifiable) found.push(item("warning", "gap that may be none"));
  if (totals.undecided) found.push(item("undecided", "undecided transaction"));
  found.push(item("text", "a leader epoch begins", "thin"));
  if (facts.audit) found.push(item("hole", "audit: error", "flag"), item("warning", "audit: warning", "flag"));
  return found;
}

function detailOf(part) {
  const list = (name, word, show) => {
    if (!part[`${name}_count`]) return null;
    const left = part[`${name}_count`] - part[name].length;
    const more = left ? [`and ${grouped(left)} more`] : [];
    return make("details", { open: part[`${name}_count`] <= 8 }, make("summary", {}, plural(part[`${name}_count`], word)), make("ul", {}, ...[...part[name].map(show), ...more].map((text) => make("li", {}, text))));
  };
  const span = ([start, stop]) => `offsets [${grouped(start)}, ${grouped(stop)})`;
  const facts = [
    ["Topic id", part.topic_id],
    ["Log start", grouped(part.log_start)],
    ["Tier end", grouped(part.tier_end)],
    ["Newest record", part.tier_end_timestamp_ms < 0 ? UNKNOWN : moment(Math.floor(Number(part.tier_end_timestamp_ms) / 1000))],
    ["Last stable offset", grouped(part.last_stable_offset)],
    ["Ends because", part.reason],
    ["Segments", grouped(part.segments)],
    ["Stored bytes", grouped(part.stored_bytes)],
    ["Original bytes", grouped(part.original_bytes)],
    ...[
      ["High watermark", "high_watermark"], ["Last stable offset of the cluster", "cluster_stable_offset"],
      ["Local log start", "local_start"], ["Offsets of brokers only", "broker_offsets"], ["Bytes of these, about", "broker_bytes"],
      ["Offsets of disks only", "disk_offsets"], ["Bytes of these", "disk_bytes"], ["Records of the catalog", "catalog_records"],
      ["Copies in progress", "copies_in_progress"], ["Deletions in progress", "deletions_in_progress"],
    ].filter(([, name]) => part[name] !== null).map(([title, name]) => [title, grouped(part[name])]),
  ];
  return [
    make("h3", {}, part.name),
    make("dl", {}, ...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))),
    list("holes", "hole", span), list("unverifiable", "gap that may be none", span),
    list("undecided", "undecided transaction", ([producer, first]) => `producer ${producer}, since offset ${grouped(first)}`),
    list("epochs", "leader epoch", ([epoch, start]) => `epoch ${epoch} from offset ${grouped(start)}`),
    list("skipped", "segment that is not read, or in part", (text) => text), list("orphans", "orphan", (text) => text),
  ].filter((one) => one !== null);
}

function start(facts, segments) {
  facts.findingsOf = new Map();
  for (const one of facts.audit ? facts.audit.findings : []) {
    const name = `${one.topic}-${one.partition}`;
    facts.findingsOf.set(name, [...(facts.findingsOf.get(name) || []), one]);
  }
  const detail = make("div", { class: "detail", "aria-live": "polite", hidden: true });
  const legend = make("div", { class: "legend" });
  const count = make("span", { class: "hint" });
  const lanes = new Lanes(facts, segments, {
    onSelect: (part) => {
      detail.hidden = !part;
      detail.replaceChildren(...(part ? detailOf(part) : []));
    },
    onView: () => {},
  });
  const radio = (group, value, text, checked) => make("label", {}, make("input", { type: "radio", name: group, value, checked, onchange: () => refresh() }), text);
  const axis = make("fieldset", {}, make("legend", {}, "Over"), radio("axis", "time", "time", true), radio("axis", "offset", "offsets", false));
  const way = make("select", { "aria-label": "Colour by", onchange: () => refresh() }, ...Object.entries(lanes.ways).map(([name, { title }]) => make("option", { value: name }, title)));
  const search = make("input", { type: "search", placeholder: "topic, partition, topic id, segment id", "aria-label": "Search", oninput: () => find() });
  const refresh = () => {
    lanes.set(axis.querySelector("input:checked").value, way.value);
    legend.replaceChildren(...legendOf(lanes, facts));
  };
  const over = (kind) => {
    axis.querySelector(`input[value=${kind}]`).checked = true;
    refresh();
  };
  const showPart = (part) => {
    search.value = "";
    find();
    lanes.select(part.number);
    lanes.box.focus({ preventScroll: true });
    lanes.element.scrollIntoView({ block: "center" });
  };
  const showTopic = (one) => {
    search.value = one.topic;
    find();
    lanes.element.scrollIntoView({ block: "center" });
  };
  const showFinding = (one) => {
    const part = facts.rows.find((row) => row.topic === one.topic && row.partition === one.partition);
    if (!part) return;
    showPart(part);
    if (one.start === null) return;
    over("offset");
    lanes.reveal(part, Number(one.start), Number(one.stop === null ? one.start : one.stop));
  };
  const tables = [topicTable(facts, segments, showTopic), partitionTable(facts, showPart), lagTable(facts, showPart)];
  const find = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const ids = Object.entries(facts.ids);
    const holders = new Set(words.flatMap((word) => (word.length < 6 ? [] : ids.filter(([, id]) => id.toLowerCase().startsWith(word)).map(([row]) => segments.partition[row]))));
    const texts = (part) => `${part.name} ${part.topic_id}`.toLowerCase();
    const kept = facts.rows.filter((part) => words.every((word) => texts(part).includes(word)) || holders.has(part.number));
    const topics = new Set(kept.map((part) => part.topic));
    const numbers = new Set(kept.map((part) => part.number));
    lanes.show(kept);
    tables[0].filter((one) => topics.has(one.topic));
    for (const table of tables.slice(1)) table.filter((part) => numbers.has(part.number));
    count.textContent = words.length ? `${grouped(kept.length)} of ${plural(facts.rows.length, "partition")}` : plural(facts.rows.length, "partition");
  };
  const button = (text, title, action) => make("button", { type: "button", title, "aria-label": title, onclick: action }, text);
  const tools = make(
    "div", { class: "tools" }, search, count, axis, make("label", {}, "Colour by ", way),
    make("span", { class: "buttons" }, button("−", "Zoom out", () => lanes.zoom(1 / 0.6)), button("+", "Zoom in", () => lanes.zoom(0.6)), button("All", "Show the whole range", () => lanes.reset())),
  );
  const keys = make("p", { class: "hint keys" }, "Drag to move, Ctrl and wheel to zoom, click for details. Keys: / search, t time, o offsets; on the lanes arrows, + − 0, and , . for segments.");
  const { growth, cost, audit } = facts;
  const rest = [Number(growth.undated_bytes) ? `${sized(growth.undated_bytes)} have no date.` : "", Number(growth.future_bytes) ? `${sized(growth.future_bytes)} are dated in the future.` : ""].join(" ");
  const main = document.querySelector("main");
  main.replaceChildren(
    tiles(facts),
    section("lanes", "Partitions", "A bar is a segment. Over time it reaches from the newest record before it to its own newest record. Strips below the bars are segments that are not read.", tools, legend, lanes.element, keys, detail),
    ...(audit ? [section("audit", "Audit", `Level ${audit.level}, ${moment(audit.auditedMs / 1000)}. ${plural(audit.counts.error, "error")}, ${plural(audit.counts.warning, "warning")}, ${audit.counts.info} info.${audit.findings.length < audit.counts.error + audit.counts.warning + audit.counts.info ? ` The first ${grouped(audit.findings.length)} are shown.` : ""}`, findingTable(audit, showFinding).element)] : []),
    ...(facts.locked.length ? [section("locked", "Locked", "Encrypted for keys that were not given. Nothing else on this page counts these partitions.", lockedTable(facts).element)] : []),
    section("topics", "Topics", null, tables[0].element),
    section("lag", "What lags", "The oldest first. \u201cCopied after\u201d is from the newest record of the last segment to the begin of its copy.", tables[2].element),
    section("growth", "Growth", `Stored bytes by the day of a segment's newest record, as far as retention has left them. ${rest}`, new GrowthChart(growth).element),
    section("retention", "Retention", `What each retention would delete now, and hold in the long run at ${sized(growth.rate)} a day. Brokers' own settings are not known here.`, retentionTable(facts).element),
    section("cost", "Storage", `${dollars(cost.monthly)} a month. A full read: ${plural(cost.read_requests, "request")}, ${grouped(cost.read_bytes)} bytes, ${dollars(cost.read_cost)}. List prices of one large S3 region; reads from within it.`, costTable(facts).element),
    section("partitions", "All partitions", null, tables[1].element),
  );
  find();
  refresh();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input[type=search], select");
    if (event.key === "Escape" && event.target === search) {
      search.value = "";
      find();
      lanes.box.focus();
    } else if (!typing && event.key === "/") {
      event.preventDefault();
      search.focus();
    } else if (!typing && (event.key === "t" || event.key === "o")) {
      over(event.key === "t" ? "time" : "offset");
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    lanes.draw();
    window.dispatchEvent(new Event("kts-theme"));
  });
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    lanes.fit(AXIS + MOST_PRINTED * LANE);
    lanes.paint();
    window.dispatchEvent(new Event("kts-theme"));
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    lanes.fit();
    window.dispatchEvent(new Event("kts-theme"));
  });
  // Once the lanes are there to be seen: how long it took to open the page.
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = performance.now().toFixed();
  }));
}

(async () => {
  const main = document.querySelector("main");
  if (!window.DecompressionStream) {
    main.textContent = "This page needs a browser of 2023 or later.";
    return;
  }
  try {
    const { facts, segments } = await unpack(document.getElementById("facts").textContent);
    start(facts, segments);
  } catch (error) {
    main.textContent = `This page cannot be shown: ${error}`;
    throw error;
  }
})();
