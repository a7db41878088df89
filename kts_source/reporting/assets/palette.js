// Colours of what is drawn, as the style sheet has them for the present theme.

const STATE_COLOURS = ["served", "disk", "covered", "below", "dead", "other"];
const CATEGORIES = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
const RAMP = ["r0", "r1", "r2", "r3", "r4"];
const RATIOS = [1.05, 1.5, 2.5, 5];

function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = [
    "text", "muted", "line", "panel", "track", "hole", "undecided", "accent", "warning",
    ...STATE_COLOURS, ...CATEGORIES, ...RAMP,
  ];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// How segments can be coloured: a colour's name for a segment, and the legend.
function colourings(facts, segments) {
  const ratio = (i) => (segments.stored[i] ? segments.original[i] / segments.stored[i] : 1);
  const states = [...new Set(segments.state)].sort((a, b) => a - b);
  return {
    state: {
      title: "State",
      of: (i) => STATE_COLOURS[segments.state[i]],
      legend: () => states.map((state) => [STATE_COLOURS[state], facts.states[state]]),
    },
    compression: {
      title: "Compression",
      of: (i) => RAMP[RATIOS.filter((limit) => ratio(i) >= limit).length],
      legend: () => RAMP.map((name, number) => [name, number ? `from ${RATIOS[number - 1]} ×` : `below ${RATIOS[0]} ×`]),
    },
    epoch: {
      title: "Leader epoch",
      of: (i) => (segments.epoch[i] < 0 ? "other" : CATEGORIES[segments.epoch[i] % CATEGORIES.length]),
      legend: () => CATEGORIES.map((name, number) => [name, number ? `${number}, ${number + 8}, …` : "0, 8, …"]),
    },
    storageClass: {
      title: "Storage class",
      of: (i) => CATEGORIES[segments.storageClass[i] % CATEGORIES.length],
      legend: () => facts.classes.map((name, number) => [CATEGORIES[number % CATEGORIES.length], name]),
    },
  };
}
