// The list: one element for each model and variant, which later answers change in place.

const COLUMNS = [
  ['variant', 'Variant'], ['state', 'State'], ['desired', 'Desired'], ['existing', 'Existing'],
  ['bounds', 'Bounds'], ['arrivals', 'Arrivals/s'], ['kv', 'KV'], ['queue', 'Wait / run'],
  ['cost', 'Cost/h'], ['why', 'Why'],
];

function renderModels({ variants }) {
  const groups = new Map();
  for (const variant of variants) {
    const key = modelKeyOf(variant);
    if (!groups.has(key)) groups.set(key, { key, all: [] });
    groups.get(key).all.push(variant);
  }
  renderNamespaces(variants);
  let matches = 0;
  for (const group of groups.values()) {
    group.shown = group.all.filter(wanted).sort(compare);
    matches += group.shown.length;
  }
  const shown = [...groups.values()].filter(group => group.shown.length > 0);
  shown.sort((a, b) => compareModels(a, b));
  for (const key of [...models.keys()]) {
    if (!groups.has(key)) dropModel(key);
  }
  const list = byId('models');
  const order = shown.map(group => updateModel(group, matches));
  for (const [key, model] of models) {
    if (!shown.some(group => group.key === key) && model.root.parentNode) model.root.remove();
  }
  arrange(list, order);
  state.resort = false;
  say(byId('found'), variants.length === 0 ? 'No variant is configured, and discovery found none.'
    : matches === variants.length ? '' : `${matches} of ${plural(variants.length, 'variant', 'variants')} shown.`);
  if (state.target) goTo(state.target);
}

/** The namespaces of all variants, as choices; the chosen one stays while it has no variant. */
function renderNamespaces(variants) {
  const names = [...new Set(variants.map(it => it.namespace))].sort();
  if (state.namespace && !names.includes(state.namespace)) names.push(state.namespace);
  const select = byId('namespace');
  const signature = JSON.stringify(names);
  if (select.dataset.text === signature) return;
  select.dataset.text = signature;
  const option = (value, name) => {
    const made = el('option', '', name);
    made.value = value;
    return made;
  };
  select.replaceChildren(option('', 'all namespaces'), ...names.map(name => option(name, name)));
  select.value = state.namespace;
}

function compareModels(a, b) {
  if (state.order === 'cost') {
    const cost = group => group.all.reduce((sum, it) => sum + (it.cost_per_hour || 0), 0);
    return cost(b) - cost(a) || (a.key < b.key ? -1 : 1);
  }
  if (state.order === 'name') return a.key < b.key ? -1 : 1;
  return compare(a.shown[0], b.shown[0]);
}

/** Puts elements into order. While somebody is at work in the list, its order stays. */
function arrange(list, order) {
  const same = order.length === list.children.length && order.every((it, at) => it === list.children[at]);
  if (same) return;
  const busy = list.contains(document.activeElement) || list.matches(':hover');
  const present = new Set(list.children);
  if (busy && !state.resort && order.every(it => present.has(it)) && order.length === present.size) return;
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const wantedHere = new Set(order);
  for (const child of [...list.children]) if (!wantedHere.has(child)) child.remove();
  order.forEach((it, at) => {
    if (list.children[at] !== it) list.insertBefore(it, list.children[at] || null);
  });
  if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

function dropModel(key) {
  models.get(key).root.remove();
  models.delete(key);
}

function isUnfolded(group, matches) {
  if (group.shown.some(variant => state.open.has(keyOf(variant)))) return true;
  if (state.folded.has(group.key)) return !state.folded.get(group.key);
  return matches <= UNFOLDED_MAX;
}

function makeModel(key) {
  const id = `model-${models.size}-${Math.random().toString(36).slice(2, 8)}`;
  const name = el('span', 'model-name');
  const toggle = el('button', 'fold', el('span', 'chevron'), name);
  toggle.type = 'button';
  toggle.setAttribute('aria-controls', id);
  const badges = el('span', 'badges');
  const facts = el('p', 'model-facts');
  const gauges = el('div', 'gauges');
  const head = el('div', 'model-head', el('h3', '', toggle), badges, facts, gauges);
  const body = el('div', 'model-body');
  body.id = id;
  const root = el('section', 'model', head, body);
  root.dataset.model = key;
  toggle.addEventListener('click', () => {
    const folded = toggle.getAttribute('aria-expanded') === 'true';
    if (folded) for (const it of [...body.querySelectorAll('[data-variant]')]) close(it.dataset.variant);
    state.folded.set(key, folded);
    renderModels(state.summary);
  });
  const model = { root, toggle, name, badges, facts, gauges, body, table: null, tbody: null };
  models.set(key, model);
  return model;
}

function updateModel(group, matches) {
  const model = models.get(group.key) || makeModel(group.key);
  const { namespace, model: name } = group.all[0];
  say(model.name, name);
  const open = isUnfolded(group, matches);
  model.toggle.setAttribute('aria-expanded', String(open));
  const sum = field => group.all.some(it => it[field] !== null)
    ? group.all.reduce((total, it) => total + (it[field] || 0), 0) : null;
  const parts = [
    `namespace ${namespace}`,
    group.shown.length === group.all.length ? plural(group.all.length, 'variant', 'variants')
      : `${group.shown.length} of ${plural(group.all.length, 'variant', 'variants')}`,
    `${count(sum('desired'))} desired, ${count(sum('current'))} existing`,
    `${money(sum('cost_per_hour'))} per hour`,
  ];
  say(model.facts, parts.join(' · '));
  renderBadges(model.badges, summedVerdicts(group.all));
  renderBalances(model.gauges, group.all);
  model.body.hidden = !open;
  if (open) renderRows(model, group);
  else if (model.table) foldModel(model);
  return model.root;
}

/** What a folded model had; its rows are made again when it is unfolded. */
function foldModel(model) {
  for (const row of model.tbody.querySelectorAll('[data-variant]')) rows.delete(row.dataset.variant);
  model.table.remove();
  model.table = null;
}

function summedVerdicts(variants) {
  const counts = new Map();
  for (const variant of variants) {
    for (const [css, , order] of verdicts(variant)) {
      if (css !== 'ok') counts.set(css, [order, (counts.get(css) || [0, 0])[1] + 1]);
    }
  }
  const words = {
    none: 'without a number', held: 'held', scaler: 'not followed', capped: 'limited', stuck: 'not starting',
    saturated: 'saturated', stale: 'not reporting', ordered: 'pinned or paused', moving: 'changing',
  };
  const found = [...counts].sort((a, b) => b[1][0] - a[1][0]).map(([css, [, many]]) => [css, `${many} ${words[css]}`, 0]);
  return found.length ? found : [['ok', 'steady', 0]];
}

function renderBadges(box, found) {
  const text = found.map(it => it[0] + it[1]).join();
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(...found.map(([css, words]) => el('span', `badge ${css}`, words)));
}

function renderRows(model, group) {
  if (!model.table) {
    const heads = COLUMNS.map(([css, name]) => {
      const head = el('th', `c-${css}`, name);
      head.scope = 'col';
      head.setAttribute('role', 'columnheader');
      return head;
    });
    const line = el('tr', '', ...heads);
    line.setAttribute('role', 'row');
    const head = el('thead', '', line);
    head.setAttribute('role', 'rowgroup');
    model.tbody = el('tbody');
    model.tbody.setAttribute('role', 'rowgroup');
    const caption = el('caption', 'unseen', `Variants of ${group.all[0].model}`);
    model.table = el('table', 'variants', caption, head, model.tbody);
    // On a narrow screen the cells are stacked, which would take their meaning from them.
    model.table.setAttribute('role', 'table');
    model.body.append(model.table);
  }
  const keys = new Set(group.shown.map(keyOf));
  for (const row of [...model.tbody.querySelectorAll('[data-variant]')]) {
    if (!keys.has(row.dataset.variant)) dropRow(row.dataset.variant);
  }
  const order = group.shown.flatMap(variant => {
    const row = updateRow(variant);
    return row.details ? [row.root, row.details.root] : [row.root];
  });
  arrange(model.tbody, order);
}

function dropRow(key) {
  const row = rows.get(key);
  if (!row) return;
  row.root.remove();
  if (row.details) row.details.root.remove();
  rows.delete(key);
}

function makeRow(key) {
  const button = el('button', 'open');
  button.type = 'button';
  button.setAttribute('aria-expanded', 'false');
  const under = el('span', 'under');
  const head = el('th', 'c-variant', button, under);
  head.scope = 'row';
  head.setAttribute('role', 'rowheader');
  const cells = Object.fromEntries(COLUMNS.slice(1).map(([css, name]) => {
    const cell = el('td', `c-${css}`);
    cell.dataset.name = name;
    cell.setAttribute('role', 'cell');
    return [css, cell];
  }));
  cells.desired.dataset.field = 'desired';
  cells.state.append(el('span', 'badges'));
  const root = el('tr', 'row', head, ...Object.values(cells));
  root.setAttribute('role', 'row');
  root.dataset.variant = key;
  root.addEventListener('click', event => {
    if (event.target !== button && getSelection().toString() !== '') return;
    if (state.open.has(key)) close(key);
    else open(key);
  });
  root.addEventListener('keydown', event => {
    if (event.key === 'Escape' && state.open.has(key)) { event.stopPropagation(); close(key); }
  });
  const row = { key, root, button, under, cells, details: null, variant: null, whole: null, history: null, changes: [], explanation: null };
  rows.set(key, row);
  return row;
}

function updateRow(variant) {
  const row = rows.get(keyOf(variant)) || makeRow(keyOf(variant));
  row.variant = variant;
  const { cells } = row;
  say(row.button, variant.variant);
  say(row.under, [variant.accelerator, variant.role === 'both' ? null : variant.role].filter(Boolean).join(', '));
  const found = verdicts(variant);
  renderBadges(cells.state.firstChild, found);
  row.root.className = `row is-${found[0][0]}`;
  say(cells.desired, count(variant.desired));
  say(cells.existing, variant.current === null ? UNKNOWN
    : variant.ready === variant.current ? `${variant.current}` : `${variant.current}, ${count(variant.ready)} ready`);
  say(cells.bounds, `${variant.min}–${variant.max === null ? '∞' : variant.max}`);
  say(cells.arrivals, rate(variant.arrivals_per_second));
  say(cells.kv, percent(variant.kv_cache_usage));
  say(cells.queue, `${requests(variant.waiting)} / ${requests(variant.running)}`);
  say(cells.cost, money(variant.cost_per_hour));
  say(cells.why, variant.headline);
  if (state.open.has(row.key) && !row.details) makeDetails(row);
  if (row.details) updateDetails(row);
  return row;
}
