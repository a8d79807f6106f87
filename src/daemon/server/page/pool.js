// The adapters of a pool: how many copies each wants, and where they should be.

const POOL_ADAPTERS = ['Adapter', 'Copies', 'On', 'Waits on', 'Why'];
const POOL_PLACES = ['Replica', 'Serves now', 'Keep', 'Load', 'Unload', 'Order to go'];

function poolTable(names) {
  const heads = names.map(name => {
    const head = el('th', '', name);
    head.scope = 'col';
    return head;
  });
  const body = el('tbody');
  return { root: el('table', 'replicas', el('thead', '', el('tr', '', ...heads)), body), body, width: names.length };
}

function makePool() {
  const root = section('Adapters and where they should be', 'data pool');
  const need = el('p', 'answer');
  const [adapters, places] = [poolTable(POOL_ADAPTERS), poolTable(POOL_PLACES)];
  const plan = el('p', 'quiet');
  root.append(need, el('div', 'scroller', adapters.root), plan, el('div', 'scroller', places.root));
  root.hidden = true;
  return { root, need, adapters, plan, places };
}

function fillPool({ body, width }, lines) {
  while (body.children.length > lines.length) body.lastChild.remove();
  while (body.children.length < lines.length) {
    const head = el('th');
    head.scope = 'row';
    body.append(el('tr', '', head, ...Array.from({ length: width - 1 }, () => el('td'))));
  }
  lines.forEach((line, index) => line.forEach((text, at) => say(body.children[index].children[at], text)));
}

function updatePool(parts, pool) {
  parts.root.hidden = !pool;
  if (!pool) return;
  const needs = [
    [pool.needed_for_copies, 'for the adapter with the most copies'],
    [pool.needed_for_slots, `for ${plural(pool.copies, 'copy', 'copies')} at ${count(pool.slots)} slots per replica`],
    [pool.needed_for_load, 'for the load'],
  ].map(([number, what]) => `${count(number)} ${what}`).join(', ');
  const unmet = pool.unmet ? ` ${plural(pool.unmet, 'replica is', 'replicas are')} needed beyond the maximum.` : '';
  say(parts.need, `Replicas needed: ${needs}.${unmet}`);
  fillPool(parts.adapters, pool.adapters.map(it => [
    it.adapter, `${it.copies}`, plural(it.replicas, 'replica', 'replicas'), it.starved ? `${it.starved}` : '', it.why,
  ]));
  const loads = pool.plan_loads ? `${plural(pool.plan_loads, 'copy has', 'copies have')} to be loaded.` : 'Every copy is where it should be.';
  say(parts.plan, `A suggestion for the component that loads adapters and routes requests. ${loads}`);
  const serves = new Map(pool.replicas.map(it => [it.replica, it.known ? it.running.join(', ') : 'not reported']));
  const goes = new Map(pool.departures.map((it, index) => [it.replica, `${index + 1}.`]));
  fillPool(parts.places, pool.plan.map(it => [
    it.replica === null ? 'pending' : it.replica, it.replica === null ? '' : serves.get(it.replica) || '',
    it.keep.join(', '), it.load.join(', '), it.unload.join(', '),
    it.stays ? goes.get(it.replica) || '' : 'next',
  ]));
}
