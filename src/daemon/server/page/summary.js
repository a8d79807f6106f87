// The summary of the fleet, and the latest changes.

function render() {
  const { status, summary } = state;
  say(byId('version'), `${status.version}, up ${ageText(status.uptime_seconds)}`);
  renderLeader(status.leader);
  renderSummary(status);
  renderAttention(status.attention);
  renderModels(summary);
  renderEvents(byId('events'), state.events, true);
  byId('events-none').hidden = state.events.length > 0;
  const needs = status.attention.length;
  document.title = needs > 0 ? `(${needs}) Plimsoll` : 'Plimsoll';
}

/** The replica of Plimsoll that decides; nothing with only one. */
function renderLeader(leader) {
  const box = byId('leader');
  box.hidden = leader === null;
  if (leader === null) return;
  const { holder, answered_by: by, leads } = leader;
  const short = name => name.split('_')[0];
  say(box, leads ? `Leader: ${by} (this replica)`
    : holder === null ? `No leader; ${by} answers` : `Leader: ${short(holder)}; ${by} answers`);
  box.title = leads ? '' : 'A replica that follows shows the decisions of the leader.';
}

function renderSummary({ fleet, sources, tick, config }) {
  const tiles = [
    ['models', 'Models', count(fleet.models), ''],
    ['variants', 'Variants', count(fleet.variants), ''],
    ['desired', 'Desired', count(fleet.desired_replicas), 'replicas'],
    ['existing', 'Existing', count(fleet.current_replicas),
      fleet.current_unknown ? `${fleet.current_unknown} unknown` : `${count(fleet.ready_replicas)} ready`],
    ['cost', 'Cost/hour', money(fleet.cost_per_hour),
      fleet.desired_cost_per_hour === null ? '' : `${money(fleet.desired_cost_per_hour)} desired`],
    ['held', 'Held', count(fleet.held), plural(fleet.held, 'variant', 'variants'), fleet.held ? 'held' : ''],
    ['undecided', 'No number', count(fleet.undecided), plural(fleet.undecided, 'variant', 'variants'), fleet.undecided ? 'none' : ''],
    ['saturated', 'Saturated', count(fleet.saturated), plural(fleet.saturated, 'variant', 'variants'), fleet.saturated ? 'saturated' : ''],
    ['replicas', 'Reporting', count(sources.replicas_fresh),
      sources.replicas_stale + sources.replicas_never ? `${sources.replicas_stale + sources.replicas_never} do not report` : 'all replicas',
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

function renderEvents(list, events, named) {
  const signature = events.map(it => `${it.number}@${it.at}`).join();
  if (list.dataset.signature !== signature) {
    list.dataset.signature = signature;
    list.replaceChildren(...events.map(event => {
      const item = el('li', event.change, makeTime());
      if (named) {
        const link = el('a', '', event.variant);
        link.href = '#' + keyOf(event);
        item.append(link);
      }
      const words = {
        desired: event.before === null ? `${event.after} desired` : `${event.before} → ${event.after}`,
        held: `held at ${count(event.after)}`, released: `decided again: ${count(event.after)}`, removed: 'gone',
      }[event.change];
      item.append(el('strong', '', words), el('span', 'why', event.headline || ''));
      return item;
    }));
  }
  events.forEach((event, index) => showTime(list.children[index].firstChild, event.at));
}
