// Need against capacity: in the head of a model, and as a chart with the forecast and the decisions.

/** Why need and capacity of a variant are not known. */
function whyUnknown(variant) {
  const { leader } = state.status;
  if (leader && !leader.leads) return 'need and capacity are unknown to this replica, which does not lead';
  if (variant.basis !== 'fresh') return 'need and capacity are unknown, because no decision is fresh';
  return 'need and capacity are unknown: foresight has not learned yet, or is off';
}

/** The need and the capacity of each role of a model, as a line with a bar. */
function renderBalances(box, variants) {
  const roles = new Map();
  for (const variant of variants) {
    const known = roles.get(variant.role);
    if (!known || (!known.balance && variant.basis === 'fresh')) roles.set(variant.role, variant);
  }
  const lines = [...roles.values()].sort((a, b) => (a.role < b.role ? -1 : 1));
  while (box.children.length > lines.length) box.lastChild.remove();
  while (box.children.length < lines.length) {
    const bar = el('span', 'bar-track', el('span', 'bar-fill'), el('span', 'bar-mark'));
    bar.setAttribute('aria-hidden', 'true');
    box.append(el('p', 'gauge', el('span', 'gauge-text'), bar));
  }
  lines.forEach((variant, index) => {
    const { role, balance } = variant;
    const line = box.children[index];
    const prefix = lines.length > 1 ? `${role}: ` : '';
    line.children[1].hidden = balance === null;
    if (balance === null) {
      line.className = 'gauge';
      say(line.children[0], prefix + whyUnknown(variant));
      return;
    }
    const { held_per_second: need, capacity_per_second: now } = balance;
    const pending = balance.capacity_pending_per_second;
    const most = balance.capacity_maximum_per_second;
    const known = [now, pending, most].filter(it => it !== null);
    line.className = now !== null && need > now ? 'gauge low' : 'gauge';
    const more = [
      pending !== null && pending !== now ? `${rate(pending)} once pending replicas are ready` : null,
      most !== null ? `${rate(most)} at the maximum` : null,
    ].filter(Boolean);
    const note = more.length ? ` (${more.join(', ')})` : '';
    say(line.children[0], `${prefix}need ${rate(need)} req/s, capacity ${now === null ? 'unknown' : rate(now)}${note}`);
    const whole = Math.max(need, ...known, 1e-9);
    line.children[1].children[0].style.inlineSize = `${(100 * (now ?? 0)) / whole}%`;
    line.children[1].children[1].style.insetInlineStart = `${Math.min(98, (100 * need) / whole)}%`;
  });
}

/** The series of the chart of need against capacity. */
function balanceSeries(past, shift) {
  const gap = past.sample_interval_seconds * 2.5;
  const line = (name, css, field, extra) => ({
    name, css, gap, ...extra, points: past.load.map(it => [it.age_seconds + shift, it[field]]),
  });
  return [
    line('capacity now', 's-capacity', 'capacity_per_second', { area: true }),
    line('capacity with pending', 's-pending', 'capacity_pending_per_second'),
    line('capacity at maximum', 's-most', 'capacity_maximum_per_second'),
    line('forecast arrivals', 's-forecast', 'forecast_per_second'),
    line('need now', 's-now', 'need_per_second'),
    line('need held', 's-need', 'held_per_second'),
  ];
}

/** The part of the chart beyond now: the forecast for the time until a new replica serves. */
function ahead(balance) {
  if (!balance) return null;
  return {
    seconds: balance.horizon_seconds,
    name: `in ${balance.horizon_seconds.toFixed(0)} s`,
    points: [
      { css: 's-forecast', from: balance.arriving_per_second, to: balance.forecast_per_second },
      { css: 's-now', from: null, to: balance.need_per_second },
      { css: 's-pending', from: balance.capacity_per_second, to: balance.capacity_pending_per_second },
    ],
  };
}

/** The marks of a chart: the decisions of the last hour, with their reasons. */
function decisionMarks(changes, now) {
  const words = {
    desired: it => (it.before === null ? `${it.after} desired` : `${it.before} → ${it.after}`),
    held: it => `held at ${count(it.after)}`, released: it => `decided again: ${count(it.after)}`,
  };
  return changes.filter(it => it.change in words).map(it => ({
    number: it.number, css: it.change,
    kind: it.change !== 'desired' ? 'flat' : it.before === null || it.after > it.before ? 'up' : 'down',
    age: Math.max(0, (now - new Date(it.at).getTime()) / 1000),
    text: `${stamp(new Date(it.at))}: ${words[it.change](it)}${it.headline ? `. ${it.headline}` : ''}`,
  }));
}
