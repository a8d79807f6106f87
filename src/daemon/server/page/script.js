// The page: asks the daemon, keeps one element for each model and variant, and says how old all of
// it is. Text goes into the document by textContent only, so a name can never become markup.

const INTERVAL = 2000;          // between two questions, in milliseconds
const INTERVAL_LARGE = 5000;    // the same for a fleet of more than LARGE variants
const LARGE = 300;
const PATIENCE = 5000;          // after which a question counts as not answered
const UNFOLDED_MAX = 40;        // variants that are unfolded without being asked for

const byId = id => document.getElementById(id);
const state = {
  status: null, decisions: null, events: [],
  answered: null,               // performance.now() of the last whole answer
  answeredAt: null,             // the same on the wall clock
  problem: null, paused: false, busy: false, timer: null,
  search: '', show: 'all', order: 'worst',
  folded: new Map(),            // what the reader chose, by model
  open: new Set(),              // variants whose details are shown
  resort: true, target: null,
};
const models = new Map();       // elements, by model
const rows = new Map();         // elements, by variant

// --- words -------------------------------------------------------------------------------------

const UNKNOWN = '–';

/** An element with a class and children; a string is put in as text. */
function el(name, css, ...children) {
  const element = document.createElement(name);
  if (css) element.className = css;
  element.append(...children);
  return element;
}

/** Sets a text where it differs, so that a selection and a screen reader are left in peace. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function clockTime(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map(part => String(part).padStart(2, '0')).join(':');
}

function ageText(seconds) {
  if (seconds === null) return 'unknown';
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const orUnknown = (value, text) => (value === null || value === undefined ? UNKNOWN : text(value));
const count = value => orUnknown(value, String);
const percent = value => orUnknown(value, it => `${Math.round(it * 100)} %`);
const finePercent = value => orUnknown(value, it => `${(it * 100).toFixed(1)} %`);
const requests = value => orUnknown(value, it => (Number.isInteger(it) ? String(it) : it.toFixed(1)));
const money = value => orUnknown(value, it => it.toFixed(2));
const plural = (number, one, many) => `${number} ${number === 1 ? one : many}`;
const title = id => id.variant;
const keyOf = it => `${encodeURIComponent(it.namespace)}/${encodeURIComponent(it.variant)}`;
const modelKeyOf = it => `${encodeURIComponent(it.namespace)}/${encodeURIComponent(it.model)}`;

// --- verdicts ----------------------------------------------------------------------------------

const unheard = variant => variant.replicas.filter(it => it.freshness !== 'fresh').length;

/** What is to be said of a variant, the worst first: [css, words, weight, explanation]. */
function verdicts(variant) {
  const found = [];
  const { desired, current, unconstrained, max } = variant;
  if (variant.basis === 'none') {
    found.push(['none', 'no number', 500, 'Nothing was ever decided, so an HPA keeps what it has.']);
  }
  if (variant.basis === 'held') {
    found.push(['held', `held ${ageText(variant.age_seconds)}`, 400, 'The number is kept from before, for want of data.']);
  }
  if (variant.saturated > 0) {
    found.push(['saturated', `${variant.saturated} saturated`, 300, 'Replicas at or above a saturation threshold.']);
  }
  if (unheard(variant) > 0) {
    found.push(['stale', `${unheard(variant)} of ${variant.replicas.length} not heard`, 200, 'Replicas without recent data.']);
  }
  if (max !== null && desired !== null && desired >= max && unconstrained > max) {
    found.push(['capped', 'at its maximum', 150, 'The load asks for more than the upper bound allows.']);
  }
  if (variant.override) {
    const { kind, replicas, until, by } = variant.override;
    const words = kind === 'pin' ? `pinned to ${replicas}` : 'paused';
    found.push(['ordered', words, 120, `By ${by}, until ${until}.`]);
  }
  if (desired !== null && current !== null && desired !== current) {
    found.push(['moving', desired > current ? 'growing' : 'shrinking', 100, 'The replicas are not what is desired yet.']);
  }
  if (found.length === 0) found.push(['ok', 'steady', 0, 'The replicas are what is desired.']);
  return found;
}

const weight = variant => verdicts(variant)[0][2] + Math.min(variant.saturation || 0, 2) * 40;

function wanted(variant) {
  const kinds = verdicts(variant).map(it => it[0]);
  const shown = state.show === 'all'
    || (state.show === 'attention' ? verdicts(variant)[0][2] >= 150 : kinds.includes(state.show));
  const text = [variant.namespace, variant.model, variant.variant, variant.accelerator || '', variant.role];
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return shown && words.every(word => text.some(it => it.toLowerCase().includes(word)));
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

// --- asking ------------------------------------------------------------------------------------

/** No whole answer has come. */
class Unanswered extends Error {}

async function ask(path) {
  let response, answer;
  try {
    response = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
    answer = await response.json();
  } catch (error) {
    throw new Unanswered(error.name === 'TimeoutError' ? 'it does not answer in time'
      : response ? 'its answer cannot be read' : 'it cannot be reached');
  }
  if (!response.ok) throw new Error(answer.error || `its answer is ${response.status}`);
  return answer;
}

async function refresh() {
  if (state.busy) return;
  state.busy = true;
  clearTimeout(state.timer);
  try {
    const [status, decisions, events] = await Promise.all([
      ask('api/v1/status'), ask('api/v1/decisions'), ask('api/v1/events?limit=12'),
    ]);
    Object.assign(state, {
      status, decisions, events: events.events, problem: null,
      answered: performance.now(), answeredAt: new Date(),
    });
    render();
    await Promise.all([...state.open].map(loadHistory));
  } catch (error) {
    state.problem = error.message;
    if (!(error instanceof Unanswered)) console.error(error);
  }
  state.busy = false;
  showAge();
  if (!state.paused && !document.hidden) {
    const large = state.decisions && state.decisions.variants.length > LARGE;
    state.timer = setTimeout(refresh, large ? INTERVAL_LARGE : INTERVAL);
  }
}

async function loadHistory(key) {
  const row = rows.get(key);
  if (!row || !row.details) return;
  const { namespace, variant } = row.variant;
  const query = new URLSearchParams({ namespace, variant });
  const [history, events] = await Promise.all([
    ask(`api/v1/history?${query}`), ask(`api/v1/events?${query}&limit=8`),
  ]).catch(error => {
    // A variant that is gone by now goes with the next answer; a daemon that is gone is said above.
    if (error instanceof Unanswered) throw error;
    return [null, null];
  });
  if (history && row.details) {
    row.history = history;
    row.changes = events.events;
    drawHistory(row);
  }
}

// --- how old it is -----------------------------------------------------------------------------

/** Says how old everything is; what is not current is greyed and has its age above it. */
function showAge() {
  const live = byId('live');
  const banner = byId('stale');
  const age = state.answered === null ? null : (performance.now() - state.answered) / 1000;
  const interval = (state.decisions && state.decisions.variants.length > LARGE ? INTERVAL_LARGE : INTERVAL) / 1000;
  const late = age !== null && age > interval + PATIENCE / 1000 + 1;
  const tick = state.status && state.status.tick;
  const tickAge = tick && age !== null ? tick.age_seconds + age : null;
  const patience = state.status ? Math.max(5, 5 * state.status.tick_interval_seconds) : null;
  let [kind, words, warning] = ['live', '', ''];
  const from = state.answeredAt && `What is shown is from ${clockTime(state.answeredAt)}, ${ageText(age)} ago, and may be wrong by now.`;
  if (age === null) {
    kind = state.problem ? 'stale' : 'loading';
    words = state.problem ? 'No answer' : 'Asking the daemon…';
    if (state.problem) warning = `The daemon has not answered yet: ${state.problem}.`;
  } else if (state.problem || (late && !state.paused)) {
    [kind, words] = ['stale', `No answer for ${ageText(age)}`];
    warning = `The daemon does not answer: ${state.problem || 'it does not answer in time'}. ${from}`;
  } else if (state.paused) {
    [kind, words] = ['paused', `Paused ${ageText(age)} ago`];
    warning = `Paused. ${from}`;
  } else if (tickAge === null) {
    [kind, words] = ['loading', 'The daemon has not decided yet'];
  } else if (tick.age_seconds > patience) {
    [kind, words] = ['stale', `Last tick ${ageText(tickAge)} ago`];
    warning = `The daemon answers but does not decide: its last tick was ${ageText(tickAge)} ago. The numbers below are from then.`;
  } else {
    words = `Live, last tick ${ageText(tickAge)} ago`;
  }
  live.dataset.state = kind;
  say(byId('live-text'), words);
  // The age in the banner would be read aloud each second; it is announced once, when it appears.
  banner.hidden = !warning;
  banner.setAttribute('aria-live', banner.dataset.kind === kind ? 'off' : 'assertive');
  banner.dataset.kind = kind;
  say(banner, warning);
  document.body.classList.toggle('old', kind === 'stale' || kind === 'paused');
}

// --- the summary -------------------------------------------------------------------------------

function render() {
  const { status, decisions } = state;
  say(byId('version'), `${status.version}, up ${ageText(status.uptime_seconds)}`);
  renderSummary(status);
  renderProblems(status);
  renderModels(decisions);
  renderEvents(byId('events'), state.events, true);
  byId('events-none').hidden = state.events.length > 0;
  const { held, undecided } = status.fleet;
  document.title = held + undecided > 0 ? `(${held + undecided}) Plimsoll` : 'Plimsoll';
}

function renderSummary({ fleet, sources, tick, config }) {
  const tiles = [
    ['models', 'Models', count(fleet.models), ''],
    ['variants', 'Variants', count(fleet.variants), ''],
    ['desired', 'Desired', count(fleet.desired_replicas), 'replicas'],
    ['running', 'Running', count(fleet.current_replicas),
      fleet.current_unknown ? `${fleet.current_unknown} unknown` : `${count(fleet.ready_replicas)} ready`],
    ['cost', 'Cost/hour', money(fleet.cost_per_hour),
      fleet.desired_cost_per_hour === null ? '' : `${money(fleet.desired_cost_per_hour)} desired`],
    ['held', 'Held', count(fleet.held), plural(fleet.held, 'variant', 'variants'), fleet.held ? 'held' : ''],
    ['undecided', 'No number', count(fleet.undecided), plural(fleet.undecided, 'variant', 'variants'), fleet.undecided ? 'none' : ''],
    ['saturated', 'Saturated', count(fleet.saturated), plural(fleet.saturated, 'variant', 'variants'), fleet.saturated ? 'saturated' : ''],
    ['replicas', 'Heard', count(sources.replicas_fresh),
      sources.replicas_stale + sources.replicas_never ? `${sources.replicas_stale + sources.replicas_never} not heard` : 'all replicas',
      sources.replicas_stale + sources.replicas_never ? 'stale' : ''],
    ['tick', 'Last tick', tick ? `${ageText(tick.age_seconds)}` : UNKNOWN, tick ? `number ${tick.generation}` : 'none yet'],
    ['config', 'Configuration', config.hash.slice(0, 6), `${ageText(config.loaded_age_seconds)} old`],
  ];
  const list = byId('summary');
  if (list.children.length === 0) {
    for (const [id, name] of tiles) {
      const tile = el('div', 'tile', el('dt', '', name), el('dd', 'value'), el('dd', 'note'));
      tile.dataset.tile = id;
      list.append(tile);
    }
  }
  tiles.forEach(([, , value, note, css], index) => {
    const tile = list.children[index];
    tile.className = css ? `tile bad ${css}` : 'tile';
    say(tile.children[1], value);
    say(tile.children[2], note);
  });
}

function renderProblems({ checks, config, api_service: service, tick }) {
  const found = [];
  if (!tick) found.push('The daemon has not decided anything yet.');
  for (const check of checks.filter(it => !it.ok)) found.push(`Not ready: ${check.name}: ${check.problem}.`);
  if (config.last_reload && !config.last_reload.accepted) {
    found.push(`The configuration was refused at ${clockTime(new Date(config.last_reload.at))}, and the last good one is in force: ${config.last_reload.problem}`);
  }
  if (service && service.state !== 'ours') {
    found.push(`External metrics API (${service.state}): ${service.problem}.`);
  }
  const box = byId('problems');
  const text = found.join('\n');
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(...found.map(it => el('p', '', it)));
}

function renderEvents(list, events, named) {
  const signature = events.map(it => it.number).join();
  if (list.dataset.signature !== signature) {
    list.dataset.signature = signature;
    list.replaceChildren(...events.map(event => {
      const time = el('time', '', clockTime(new Date(event.at)));
      time.dateTime = event.at;
      const item = el('li', event.change, time);
      if (named) {
        const link = el('a', '', event.variant);
        link.href = '#' + keyOf(event);
        item.append(link);
      }
      const words = {
        desired: event.before === null ? `${event.after} desired` : `${event.before} → ${event.after}`,
        held: `held at ${count(event.after)}`, released: `decided again: ${count(event.after)}`, removed: 'gone',
      }[event.change];
      item.append(el('strong', '', words), el('span', 'why', event.text || ''));
      return item;
    }));
  }
}

// --- models and variants -----------------------------------------------------------------------

function renderModels({ models: found, variants }) {
  const groups = new Map();
  for (const variant of variants) {
    const key = modelKeyOf(variant);
    if (!groups.has(key)) groups.set(key, { key, all: [], roles: [] });
    groups.get(key).all.push(variant);
  }
  for (const model of found) {
    const group = groups.get(modelKeyOf(model));
    if (group) group.roles.push(model);
  }
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
  say(byId('found'), variants.length === 0 ? 'No variant is configured.'
    : matches === variants.length ? '' : `${matches} of ${plural(variants.length, 'variant', 'variants')} shown.`);
  if (state.target) goTo(state.target);
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
    renderModels(state.decisions);
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
    `${count(sum('desired'))} desired, ${count(sum('current'))} running`,
    `${money(sum('cost_per_hour'))} per hour`,
  ];
  say(model.facts, parts.join(' · '));
  renderBadges(model.badges, summedVerdicts(group.all));
  renderGauges(model.gauges, group.roles);
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
  const words = { none: 'without a number', held: 'held', saturated: 'saturated', stale: 'not fully heard', capped: 'at maximum', ordered: 'pinned or paused', moving: 'moving' };
  const found = [...counts].sort((a, b) => b[1][0] - a[1][0]).map(([css, [, many]]) => [css, `${many} ${words[css]}`, 0, '']);
  return found.length ? found : [['ok', 'steady', 0, '']];
}

function renderBadges(box, found) {
  const text = found.map(it => it[0] + it[1]).join();
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(...found.map(([css, words, , why]) => {
    const badge = el('span', `badge ${css}`, words);
    if (why) badge.title = why;
    return badge;
  }));
}

/** Spare capacity against the trigger: below the mark, the model grows. */
function renderGauges(box, roles) {
  const several = roles.length > 1;
  const lines = roles.flatMap(it => [
    [`${several ? it.role + ': ' : ''}KV cache spare`, it.spare_kv, it.trigger_kv, it.threshold_kv, finePercent],
    [`${several ? it.role + ': ' : ''}Queue spare`, it.spare_queue, it.trigger_queue, it.threshold_queue, requests],
  ]);
  while (box.children.length > lines.length) box.lastChild.remove();
  while (box.children.length < lines.length) {
    const bar = el('span', 'bar-track', el('span', 'bar-fill'), el('span', 'bar-mark'));
    bar.setAttribute('aria-hidden', 'true');
    box.append(el('p', 'gauge', el('span', 'gauge-text'), bar));
  }
  lines.forEach(([name, spare, trigger, whole, text], index) => {
    const line = box.children[index];
    const low = spare < trigger;
    line.className = low ? 'gauge low' : 'gauge';
    say(line.children[0], `${name} ${text(spare)}, grows below ${text(trigger)}`);
    const share = value => `${Math.min(100, (value / whole) * 100)}%`;
    line.children[1].children[0].style.inlineSize = share(spare);
    line.children[1].children[1].style.insetInlineStart = share(trigger);
  });
  const waits = roles.map(it => it.waits_for).filter(Boolean).join('; ');
  box.dataset.waits = waits ? `Waiting: ${waits}` : '';
}

const COLUMNS = [
  ['variant', 'Variant'], ['state', 'State'], ['desired', 'Desired'], ['running', 'Running'],
  ['bounds', 'Bounds'], ['saturation', 'Saturation'], ['kv', 'KV'], ['queue', 'Wait / run'],
  ['age', 'Data age'], ['cost', 'Cost/h'], ['why', 'Why'],
];

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
  const fill = el('span', 'bar-fill');
  const track = el('span', 'bar-track', fill);
  track.setAttribute('aria-hidden', 'true');
  cells.saturation.append(el('span', 'figure'), track);
  cells.state.append(el('span', 'badges'));
  const root = el('tr', 'row', head, ...Object.values(cells));
  root.setAttribute('role', 'row');
  root.dataset.variant = key;
  button.addEventListener('click', () => (state.open.has(key) ? close(key) : open(key)));
  root.addEventListener('keydown', event => {
    if (event.key === 'Escape' && state.open.has(key)) { event.stopPropagation(); close(key); }
  });
  const row = { key, root, button, under, cells, fill, details: null, variant: null, history: null, changes: [] };
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
  say(cells.running, variant.current === null ? UNKNOWN
    : variant.ready === variant.current ? `${variant.current}` : `${variant.current}, ${count(variant.ready)} ready`);
  say(cells.bounds, `${variant.min}–${variant.max === null ? '∞' : variant.max}`);
  say(cells.saturation.firstChild, percent(variant.saturation));
  cells.saturation.classList.toggle('over', variant.saturation >= 1);
  row.fill.style.inlineSize = `${Math.min(100, (variant.saturation || 0) * 100)}%`;
  say(cells.kv, percent(variant.kv_cache_usage));
  say(cells.queue, `${requests(variant.waiting)} / ${requests(variant.running)}`);
  say(cells.age, orUnknown(variant.data_age_seconds, ageText));
  say(cells.cost, money(variant.cost_per_hour));
  say(cells.why, variant.because);
  if (state.open.has(row.key) && !row.details) makeDetails(row);
  if (row.details) updateDetails(row);
  return row;
}

// --- the details of a variant ------------------------------------------------------------------

function open(key) {
  state.open.add(key);
  const row = rows.get(key);
  if (row) {
    makeDetails(row);
    updateDetails(row);
    row.root.after(row.details.root);
    loadHistory(key).catch(() => {});
  }
  if (location.hash !== '#' + key) history.replaceState(null, '', '#' + key);
}

function close(key) {
  state.open.delete(key);
  const row = rows.get(key);
  if (row && row.details) {
    const focused = row.details.root.contains(document.activeElement);
    row.details.root.remove();
    row.details = null;
    row.history = null;
    row.button.setAttribute('aria-expanded', 'false');
    if (focused) row.button.focus();
  }
  if (location.hash === '#' + key) history.replaceState(null, '', location.pathname + location.search);
}

function section(name, css) {
  const heading = el('h4', '', name);
  return el('section', css, heading);
}

function makeDetails(row) {
  if (row.details) return;
  const charts = section('The last hour', 'charts');
  const since = el('span', 'since');
  charts.firstChild.append(since);
  const cursor = new Cursor();
  const whole = value => String(value);
  const replicas = new Chart(charts, { title: 'Replicas', height: 190, least: 1, whole: true, tick: whole, say: whole }, cursor);
  const share = value => `${Math.round(value * 100)} %`;
  const load = new Chart(charts, { title: 'Demand against capacity', height: 130, least: 1, tick: share, say: share }, cursor);
  const queue = new Chart(charts, { title: 'Requests', height: 110, least: 4, tick: whole, say: value => value.toFixed(value < 10 ? 1 : 0) }, cursor);
  const why = section('', 'why-box');
  const answer = el('p', 'answer');
  const steps = el('ol', 'steps');
  const facts = el('dl', 'facts');
  why.append(answer, steps, facts);
  const changes = section('Changes', 'changes');
  const list = el('ol', 'events-list');
  const noChanges = el('p', 'quiet', 'None since the daemon started.');
  changes.append(list, noChanges);
  const data = section('Replicas and their data', 'data');
  const table = el('table', 'replicas');
  const tbody = el('tbody');
  const heads = ['Replica', 'Data', 'Age', 'KV cache', 'Waiting', 'Running'].map(name => {
    const head = el('th', '', name);
    head.scope = 'col';
    return head;
  });
  table.append(el('thead', '', el('tr', '', ...heads)), tbody);
  const scroller = el('div', 'scroller', table);
  const noReplicas = el('p', 'quiet', 'No replica is listed.');
  data.append(scroller, noReplicas);
  const pool = makePool();
  const shadow = makeShadow();
  const shut = el('button', 'shut', 'Close');
  shut.type = 'button';
  shut.addEventListener('click', () => { close(row.key); row.button.focus(); });
  const panel = el('div', 'panel', charts, el('div', 'side', why, changes), data, pool.root, shadow.root, shut);
  const cell = el('td', '', panel);
  cell.colSpan = COLUMNS.length;
  cell.setAttribute('role', 'cell');
  const root = el('tr', 'details', cell);
  root.setAttribute('role', 'row');
  root.id = `details-${row.key}`;
  root.addEventListener('keydown', event => {
    if (event.key === 'Escape') { event.stopPropagation(); close(row.key); row.button.focus(); }
  });
  row.button.setAttribute('aria-expanded', 'true');
  row.button.setAttribute('aria-controls', root.id);
  row.details = { root, replicas, load, queue, since, why, answer, steps, facts, changes, list, noChanges, tbody, table, noReplicas, pool, shadow, drawn: false };
}

const STAGES = {
  analyze: 'The load asks for', share: 'Shared with other models', bridge: 'Until others serve', pool: 'The adapters ask for', hold: 'Kept from before', guard: 'Guard against incomplete data',
  stabilize: 'Stabilisation window', dwell: 'Minimum dwell', flap_budget: 'Flap budget', panic: 'Panic window',
  step_limit: 'Step limit', zero: 'To zero and back', bounds: 'Bounds', limit: 'What may be used', check: 'Final check',
};

function updateDetails(row) {
  const { variant, details } = row;
  say(details.why.firstChild, variant.desired === null ? 'Why there are no desired replicas'
    : `Why ${plural(variant.desired, 'replica', 'replicas')}`);
  const notes = {
    fresh: `Decided on data that is ${ageText(variant.age_seconds)} old.`,
    held: `Held: kept from before, because there is no fresh data. It rests on data that is ${ageText(variant.age_seconds)} old.`,
    none: `Nothing was ever decided: ${variant.because}. An HPA that asks gets an error and keeps what it has.`,
  };
  say(details.answer, notes[variant.basis]);
  details.answer.className = `answer is-${variant.basis}`;
  const steps = variant.steps.map(step => [
    STAGES[step.stage] || step.stage,
    step.before === step.after ? `stays ${step.after}` : `${step.before} → ${step.after}`, step.text, step.before !== step.after,
    termLines(step),
  ]);
  const text = JSON.stringify(steps);
  if (details.steps.dataset.text !== text) {
    details.steps.dataset.text = text;
    details.steps.replaceChildren(...steps.map(([stage, move, why, changed, terms]) =>
      el('li', changed ? 'changed' : '', el('span', 'stage-name', stage), el('strong', '', move), el('span', 'why', why), ...makeTerms(terms))));
  }
  const facts = [
    ['Load alone asks for', count(variant.unconstrained)],
    ['Bounds', `${variant.min} to ${variant.max === null ? 'no maximum' : variant.max}`],
    ['Not ready yet', count(variant.pending)],
    ['Arrivals per second', requests(variant.arrivals_per_second)],
    ['Cost of one per hour', money(variant.cost_per_replica_hour)],
    ['Role', variant.role],
  ];
  if (variant.scale_problem) facts.push(['Scale target', variant.scale_problem]);
  const model = models.get(modelKeyOf(variant));
  if (model && model.gauges.dataset.waits) facts.push(['Model', model.gauges.dataset.waits]);
  const now = JSON.stringify(facts);
  if (details.facts.dataset.text !== now) {
    details.facts.dataset.text = now;
    details.facts.replaceChildren(...facts.map(([name, value]) => el('div', '', el('dt', '', name), el('dd', '', value))));
  }
  updateReplicas(details, variant.replicas);
  updatePool(details.pool, variant.pool);
  updateShadow(details.shadow, variant);
}

function updateReplicas(details, replicas) {
  details.noReplicas.hidden = replicas.length > 0;
  details.table.hidden = replicas.length === 0;
  const { tbody } = details;
  while (tbody.children.length > replicas.length) tbody.lastChild.remove();
  while (tbody.children.length < replicas.length) {
    const head = el('th');
    head.scope = 'row';
    tbody.append(el('tr', '', head, ...Array.from({ length: 5 }, () => el('td'))));
  }
  replicas.forEach((replica, index) => {
    const cells = tbody.children[index].children;
    say(cells[0], replica.replica);
    const fresh = replica.freshness === 'fresh';
    const words = { fresh: 'fresh', stale: 'stale', never: 'never heard' }[replica.freshness];
    const failed = replica.failure_detail || replica.failure;
    renderBadges(cells[1], [[fresh ? 'ok' : replica.freshness === 'stale' ? 'stale' : 'none', words, 0, '']]);
    if (failed) {
      const why = el('span', 'failure', failed);
      cells[1].append(why);
      cells[1].dataset.text = '';
    }
    say(cells[2], orUnknown(replica.age_seconds, ageText));
    say(cells[3], percent(replica.kv_cache_usage));
    say(cells[4], requests(replica.waiting));
    say(cells[5], requests(replica.running));
  });
}

function drawHistory(row) {
  const { history: past, details, variant } = row;
  const span = spanFor(past.since_age_seconds);
  const until = past.tick_age_seconds || 0;
  const now = new Date(past.now).getTime();
  const steps = (name, css, field, area) => ({
    name, css, area, step: true, until, points: past.replicas.map(it => [it.age_seconds, it[field]]),
  });
  const zones = past.replicas.map((it, index) => {
    const next = past.replicas[index + 1];
    return { css: it.basis, from: it.age_seconds, to: next ? next.age_seconds : until };
  }).filter(zone => zone.css !== 'fresh' && zone.to <= span);
  const limits = variant.max === null ? [] : [{ value: variant.max, name: `maximum ${variant.max}` }];
  details.replicas.draw(now, span, [
    steps('ready', 's-ready', 'ready', true), steps('running', 's-current', 'current', false),
    steps('desired', 's-desired', 'desired', false),
  ], zones, limits);
  const gap = past.sample_interval_seconds * 2.5;
  const line = (name, css, field) => ({
    name, css, gap, points: past.load.map(it => [it.age_seconds, it[field]]),
  });
  details.load.draw(now, span, [line('saturation', 's-saturation', 'saturation'), line('KV cache in use', 's-kv', 'kv_cache_usage')],
    zones, [{ value: 1, name: 'saturated' }]);
  details.queue.draw(now, span, [line('waiting', 's-waiting', 'waiting'), line('running', 's-running', 'running')], zones, []);
  say(details.since, past.since_age_seconds < past.kept_seconds - 1 ? `known for ${ageText(past.since_age_seconds)}` : '');
  renderEvents(details.list, row.changes, false);
  details.noChanges.hidden = row.changes.length > 0;
  details.root.dataset.drawn = String(past.load.length);
}

// --- what the reader does ----------------------------------------------------------------------

/** Shows the variant that a fragment names, once it is there. */
function goTo(key) {
  const known = state.decisions && state.decisions.variants.find(it => keyOf(it) === key);
  state.target = null;
  if (!known) return;
  if (!wanted(known)) {
    byId('search').value = state.search = '';
    byId('show').value = state.show = 'all';
  }
  open(key);
  renderModels(state.decisions);
  loadHistory(key).catch(() => {});
  const row = rows.get(key);
  if (row) {
    row.button.focus({ preventScroll: true });
    row.root.scrollIntoView({ block: 'start' });
  }
}

function fromHash() {
  const hash = location.hash.slice(1);
  if (!/^[^/]+\/[^/]+$/.test(hash)) return;
  // Links may be written by hand, with what need not be escaped left as it is.
  let parts;
  try { parts = hash.split('/').map(decodeURIComponent); } catch { return; }
  state.target = parts.map(encodeURIComponent).join('/');
  if (state.decisions) goTo(state.target);
}

function theme(next) {
  if (next === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  say(byId('theme'), `Theme: ${next}`);
  try { localStorage.setItem('plimsoll-theme', next); } catch { /* Storage is a convenience. */ }
}

function listen() {
  const again = () => { state.resort = true; if (state.decisions) renderModels(state.decisions); };
  byId('controls').addEventListener('submit', event => event.preventDefault());
  byId('search').addEventListener('input', event => { state.search = event.target.value; again(); });
  byId('show').addEventListener('change', event => { state.show = event.target.value; again(); });
  byId('order').addEventListener('change', event => { state.order = event.target.value; again(); });
  const fold = folded => () => {
    if (folded) for (const key of [...state.open]) close(key);
    for (const key of models.keys()) state.folded.set(key, folded);
    again();
  };
  byId('unfold').addEventListener('click', fold(false));
  byId('fold').addEventListener('click', fold(true));
  byId('theme').addEventListener('click', () => {
    const now = document.documentElement.dataset.theme || 'auto';
    theme({ auto: 'light', light: 'dark', dark: 'auto' }[now]);
  });
  byId('pause').addEventListener('click', event => {
    state.paused = !state.paused;
    event.target.setAttribute('aria-pressed', String(state.paused));
    say(event.target, state.paused ? 'Resume' : 'Pause');
    if (state.paused) clearTimeout(state.timer);
    else refresh();
    showAge();
  });
  document.addEventListener('keydown', event => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      byId('search').focus();
    }
    if (event.key === 'Escape' && !typing && state.open.size > 0) {
      const last = [...state.open].pop();
      close(last);
      const row = rows.get(last);
      if (row) row.button.focus();
    }
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden && !state.paused) refresh(); });
  window.addEventListener('hashchange', fromHash);
  let resizing = null;
  window.addEventListener('resize', () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { for (const row of rows.values()) if (row.history && row.details) drawHistory(row); }, 100);
  });
}

let kept = 'auto';
try { kept = localStorage.getItem('plimsoll-theme') || 'auto'; } catch { /* As above. */ }
theme(['light', 'dark'].includes(kept) ? kept : 'auto');
listen();
fromHash();
refresh();
setInterval(showAge, 1000);
