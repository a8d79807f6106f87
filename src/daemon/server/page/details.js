// The details of a variant: charts, the reasons, what would change the number, and its replicas.

function open(key) {
  state.open.add(key);
  const row = rows.get(key);
  if (row) {
    makeDetails(row);
    updateDetails(row);
    row.root.after(row.details.root);
    loadDetails(key).catch(() => {});
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
    Object.assign(row, { whole: null, history: null, explanation: null });
    forget(new URLSearchParams({ namespace: row.variant.namespace, variant: row.variant.variant }).toString());
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
  const balance = new Chart(charts, { title: 'Need against capacity, requests/s', height: 210, least: 1, tick: whole, say: rate }, cursor);
  const unknown = el('p', 'quiet unlearned');
  balance.figure.after(unknown);
  const replicas = new Chart(charts, { title: 'Replicas', height: 150, least: 1, whole: true, tick: whole, say: whole }, cursor);
  const share = value => `${Math.round(value * 100)}%`;
  const load = new Chart(charts, { title: 'Saturation and KV cache', height: 110, least: 1, tick: share, say: share }, cursor);
  const queue = new Chart(charts, { title: 'Requests', height: 110, least: 4, tick: whole, say: value => value.toFixed(value < 10 ? 1 : 0) }, cursor);
  const why = section('', 'why-box');
  const answer = el('p', 'answer');
  const steps = el('ol', 'steps');
  const facts = el('dl', 'facts');
  why.append(answer, steps, facts);
  const change = section('What would change it', 'change-box');
  const answers = el('ul', 'change-list');
  change.append(answers);
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
  const panel = el('div', 'panel', charts, el('div', 'side', why, change, changes), data, pool.root, shadow.root, shut);
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
  row.details = {
    root, balance, unknown, replicas, load, queue, since, why, answer, steps, facts, change, answers,
    changes, list, noChanges, tbody, table, noReplicas, pool, shadow,
  };
}

const STAGES = {
  analyze: 'The load asks for', share: 'Shared with other models', bridge: 'Until others serve', pool: 'The adapters ask for', hold: 'Kept from before', guard: 'Guard against incomplete data',
  stabilize: 'Stabilization window', dwell: 'Minimum dwell', flap_budget: 'Flap budget', panic: 'Panic window',
  step_limit: 'Step limit', zero: 'To zero and back', override: 'Pinned or paused', bounds: 'Bounds', limit: 'What may be used', check: 'Final check',
};

/** The details from the row alone, and from the whole variant once it is there. */
function updateDetails(row) {
  const { variant, whole, details } = row;
  say(details.why.firstChild, variant.desired === null ? 'Why there are no desired replicas'
    : `Why ${plural(variant.desired, 'replica', 'replicas')}`);
  if (!whole) return;
  const notes = {
    fresh: `Decided on data that is ${ageText(whole.age_seconds)} old.`,
    held: `Held from an earlier decision. The last data is ${ageText(whole.age_seconds)} old.`,
    none: `Nothing was ever decided: ${whole.because}. An HPA that asks gets an error and keeps its replicas.`,
  };
  say(details.answer, notes[whole.basis]);
  details.answer.className = `answer is-${whole.basis}`;
  renderSteps(details.steps, whole.steps);
  renderFacts(details.facts, whole);
  renderChanges(details.answers, row.explanation);
  updateReplicas(details, whole.replicas);
  updatePool(details.pool, whole.pool);
  updateShadow(details.shadow, whole);
}

/** The steps of a decision: the headline and its facts; the whole sentence is folded below them. */
function renderSteps(list, steps) {
  const shown = steps.map(step => ({
    stage: STAGES[step.stage] || step.stage,
    move: step.before === step.after ? `stays ${step.after}` : `${step.before} → ${step.after}`,
    headline: step.headline.replace(/^(Keep \d+|Scale (up|down) \d+ -> \d+): /, ''),
    facts: step.facts.map(factText), text: step.text, remedy: step.remedy,
    changed: step.before !== step.after, terms: termLines(step),
  }));
  const text = JSON.stringify(shown);
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  const unfolded = [...list.children].map(it => it.querySelector('details')?.open ?? false);
  list.replaceChildren(...shown.map((step, index) => {
    const more = el('details', '', el('summary', '', 'More'), el('p', 'why', step.text), ...makeTerms(step.terms));
    more.open = unfolded[index] ?? false;
    const facts = step.facts.length ? [el('p', 'step-facts', ...step.facts.map(it => el('span', 'fact', it)))] : [];
    const remedy = step.remedy ? [el('p', 'remedy', step.remedy)] : [];
    return el('li', step.changed ? 'changed' : '', el('span', 'stage-name', step.stage), el('strong', '', step.move),
      el('p', 'headline', step.headline), ...facts, ...remedy, more);
  }));
}

function renderFacts(list, whole) {
  const facts = [
    ['Load alone requests', count(whole.unconstrained)],
    ['Bounds', `${whole.min} to ${whole.max === null ? 'no maximum' : whole.max}`],
    ['Not ready yet', count(whole.pending)],
    ['Starts stuck', count(whole.stuck)],
    ['Start-up time', whole.startup_p50_seconds === null ? 'not measured yet'
      : `${ageText(whole.startup_p50_seconds)} (p90 ${ageText(whole.startup_p90_seconds)})`],
    ['Saturation', percent(whole.saturation)],
    ['Cost per replica and hour', money(whole.cost_per_replica_hour)],
    ['Role', whole.role],
  ];
  if (whole.scale_problem) facts.push(['Scale target', whole.scale_problem]);
  const now = JSON.stringify(facts);
  if (list.dataset.text === now) return;
  list.dataset.text = now;
  list.replaceChildren(...facts.map(([name, value]) => el('div', '', el('dt', '', name), el('dd', '', value))));
}

/** The loads and settings at which the number changes, and what the autoscaler does with it. */
function renderChanges(list, explanation) {
  const lines = [];
  if (explanation === null) {
    lines.push(['quiet', 'Asking the daemon…']);
  } else if (explanation.error) {
    lines.push(['quiet', `Not known: ${explanation.error}`]);
  } else {
    const { load, settled, changes, autoscaler, unknown, variant } = explanation;
    if (load) lines.push(['load', load.text]);
    if (settled !== null && settled !== variant.desired) {
      lines.push(['', `${plural(settled, 'replica', 'replicas')} once every wait has ended, if the load stays as it is`]);
    }
    for (const change of changes) lines.push(['', change.text]);
    if (autoscaler) {
      const problem = ['ignores', 'disabled', 'not_followed'].includes(autoscaler.reaction);
      lines.push([problem ? 'hpa bad' : 'hpa', autoscaler.text]);
      for (const it of autoscaler.problems) lines.push(['hpa bad', it]);
      if (autoscaler.remedy) lines.push(['code', autoscaler.remedy]);
    }
    for (const it of unknown) lines.push(['quiet', `Not known: ${it}`]);
  }
  const text = JSON.stringify(lines);
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...lines.map(([css, words]) => el('li', css, css === 'code' ? el('pre', '', words) : words)));
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
    const words = { fresh: 'fresh', stale: 'stale', never: 'never reported' }[replica.freshness];
    const failed = replica.failure_detail || replica.failure;
    renderBadges(cells[1], [[fresh ? 'ok' : replica.freshness === 'stale' ? 'stale' : 'none', words, 0]]);
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
  const known = answers.get(past.path);
  // An answer that is still the same is drawn at its present age.
  const shift = known && known.answer === past.answer ? (performance.now() - past.received) / 1000 : 0;
  const learned = variant.balance !== null || past.answer.load.some(it => it.need_per_second !== null);
  details.unknown.hidden = learned;
  const why = whyUnknown(variant);
  say(details.unknown, `${why[0].toUpperCase()}${why.slice(1)}.`);
  details.balance.figure.hidden = !learned;
  drawCharts(row, past.answer, shift);
  say(details.since, past.answer.since_age_seconds < past.answer.kept_seconds - 1
    ? `known for ${ageText(past.answer.since_age_seconds + shift)}` : '');
  renderEvents(details.list, row.changes.slice(0, 8), false);
  details.noChanges.hidden = row.changes.length > 0;
  details.root.dataset.drawn = String(past.answer.load.length);
}

function drawCharts({ details, variant, changes }, past, shift) {
  const span = spanFor(past.since_age_seconds + shift);
  const until = past.tick_age_seconds || 0;
  const now = new Date(past.now).getTime() + shift * 1000;
  const steps = (name, css, field, area) => ({
    name, css, area, step: true, until, points: past.replicas.map(it => [it.age_seconds + shift, it[field]]),
  });
  const zones = past.replicas.map((it, index) => {
    const next = past.replicas[index + 1];
    return { css: it.basis, from: it.age_seconds + shift, to: next ? next.age_seconds + shift : until };
  }).filter(zone => zone.css !== 'fresh' && zone.to <= span);
  const marks = decisionMarks(changes, now);
  const strip = ahead(variant.balance);
  details.balance.draw(now, span, balanceSeries(past, shift), zones, [], marks, strip);
  const limits = variant.max === null ? [] : [{ value: variant.max, name: `maximum ${variant.max}` }];
  details.replicas.draw(now, span, [
    steps('ready', 's-ready', 'ready', true), steps('existing', 's-current', 'current', false),
    steps('desired', 's-desired', 'desired', false),
  ], zones, limits, marks);
  const gap = past.sample_interval_seconds * 2.5;
  const line = (name, css, field) => ({
    name, css, gap, points: past.load.map(it => [it.age_seconds + shift, it[field]]),
  });
  details.load.draw(now, span, [line('saturation', 's-saturation', 'saturation'), line('KV cache in use', 's-kv', 'kv_cache_usage')],
    zones, [{ value: 1, name: 'saturated' }]);
  details.queue.draw(now, span, [line('waiting', 's-waiting', 'waiting'), line('running', 's-running', 'running')], zones, []);
}
