// The state of a variant in badges, the filters, and the order of lists.

// Badges of causes that need a person: css, words and weight. Titles are in the banner.
const CAUSES = {
  undecided: ['none', 'no number', 500], refused: ['none', 'not published', 450],
  expired: ['none', 'too old', 440], held: ['held', 'held', 400],
  scaler_problem: ['scaler', 'HPA does not follow', 350], at_maximum: ['capped', 'at maximum, short', 340],
  stuck_starts: ['stuck', 'does not start', 330],
  limit_unread: ['capped', 'limit not read', 310], stale: ['stale', 'not reporting', 200],
  slo_unmeetable: ['capped', 'target unreachable', 160], flap_budget_spent: ['held', 'flap budget spent', 155],
};

// Reactions of an autoscaler that keep it from following.
const REACTIONS = { ignores: 'HPA ignores the change', disabled: 'HPA never scales this way', not_followed: 'no HPA follows' };

/** The badges of a variant, the worst first: [css, words, weight]. */
function verdicts(variant) {
  const found = [];
  const { desired, current } = variant;
  for (const cause of variant.attention) {
    const [css, words, weight] = CAUSES[cause] || ['stale', cause.replaceAll('_', ' '), 160];
    found.push([css, cause === 'stale' ? `${variant.silent} of ${variant.replicas} ${words}` : words, weight]);
  }
  if (variant.autoscaler in REACTIONS && !variant.attention.includes('scaler_problem')) {
    found.push(['scaler', REACTIONS[variant.autoscaler], 345]);
  }
  if (variant.saturated > 0) {
    // Learned capacity decides where it is known; thresholds decide otherwise.
    found.push(['saturated', `${variant.saturated} saturated`, variant.balance ? 140 : 300]);
  }
  if (variant.override) {
    const { kind, replicas, until } = variant.override;
    const words = kind === 'pin' ? `pinned to ${replicas}` : 'paused';
    found.push(['ordered', `${words} until ${stamp(new Date(until))}`, 120]);
  }
  if (desired !== null && current !== null && desired !== current) {
    found.push(['moving', desired > current ? 'scaling up' : 'scaling down', 100]);
  }
  if (found.length === 0) found.push(['ok', 'steady', 0]);
  return found.sort((a, b) => b[2] - a[2]);
}

const weight = variant => verdicts(variant)[0][2] + Math.min(variant.saturation || 0, 2) * 40;

function wanted(variant) {
  const kinds = verdicts(variant).map(it => it[0]);
  const shown = state.show === 'all'
    || (state.show === 'attention' ? verdicts(variant)[0][2] >= 150 : kinds.includes(state.show));
  const here = state.namespace === '' || variant.namespace === state.namespace;
  const text = [variant.namespace, variant.model, variant.variant, variant.accelerator || '', variant.role];
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return shown && here && words.every(word => text.some(it => it.toLowerCase().includes(word)));
}

function compare(a, b) {
  const name = keyOf(a) < keyOf(b) ? -1 : keyOf(a) > keyOf(b) ? 1 : 0;
  const by = {
    worst: () => weight(b) - weight(a),
    saturation: () => (b.saturation ?? -1) - (a.saturation ?? -1),
    cost: () => (b.cost_per_hour ?? -1) - (a.cost_per_hour ?? -1),
    name: () => 0,
  }[state.order]();
  return by || name;
}
