// The banner: what needs a person, with the cause, since when, the runbook and a command.

const ATTENTION_NAMES = 3;      // variants that an entry names
const ATTENTION_SHOWN = 4;      // entries that are shown without unfolding

function makeAttention() {
  const title = el('strong', 'attention-title');
  const text = el('span', 'attention-text');
  const variants = el('span', 'attention-variants');
  const time = makeTime();
  const since = el('span', 'attention-since', 'since ', time);
  const runbook = el('a', '', 'Runbook');
  const command = el('code');
  const copy = el('button', 'copy', 'Copy');
  copy.type = 'button';
  copy.addEventListener('click', () => {
    const written = navigator.clipboard ? navigator.clipboard.writeText(command.textContent) : Promise.reject();
    written.then(() => say(copy, 'Copied'), () => getSelection().selectAllChildren(command));
  });
  const root = el('li', '', el('p', '', title, ' ', variants), text,
    el('p', 'attention-next', since, runbook, el('span', 'command', command, copy)));
  return { root, title, text, variants, since, time, runbook, command, copy };
}

function showAttention(parts, item) {
  parts.root.className = `attention-item is-${item.severity}`;
  parts.root.dataset.cause = item.cause;
  say(parts.title, item.title[0].toUpperCase() + item.title.slice(1));
  say(parts.text, item.text);
  const named = item.variants.slice(0, ATTENTION_NAMES);
  const signature = JSON.stringify([named, item.count]);
  if (parts.variants.dataset.text !== signature) {
    parts.variants.dataset.text = signature;
    const links = named.flatMap((it, index) => {
      const link = el('a', '', `${it.namespace}/${it.variant}`);
      link.href = '#' + keyOf(it);
      return index === 0 ? [link] : [', ', link];
    });
    const more = item.count - named.length;
    parts.variants.replaceChildren(...links, more > 0 ? ` and ${more} more` : '');
  }
  parts.since.hidden = item.since === null;
  if (item.since !== null) showTime(parts.time, item.since);
  parts.runbook.hidden = item.runbook === null;
  if (item.runbook !== null) parts.runbook.href = `runbooks/${encodeURIComponent(item.runbook)}`;
  if (parts.command.textContent !== item.command) {
    say(parts.command, item.command);
    say(parts.copy, 'Copy');
  }
}

const attentionItems = [];

function renderAttention(items) {
  const box = byId('attention');
  const list = byId('attention-list');
  box.hidden = items.length === 0;
  const worst = items.some(it => it.severity === 'critical') ? 'critical' : 'warning';
  box.dataset.severity = worst;
  say(byId('attention-heading'), `${plural(items.length, 'thing needs', 'things need')} attention`);
  while (attentionItems.length > items.length) attentionItems.pop().root.remove();
  while (attentionItems.length < items.length) {
    const parts = makeAttention();
    attentionItems.push(parts);
    list.append(parts.root);
  }
  items.forEach((item, index) => {
    showAttention(attentionItems[index], item);
    attentionItems[index].root.hidden = index >= ATTENTION_SHOWN && !state.allAttention;
  });
  const more = byId('attention-more');
  more.hidden = items.length <= ATTENTION_SHOWN;
  more.setAttribute('aria-expanded', String(state.allAttention));
  say(more, state.allAttention ? 'Show fewer' : `Show ${items.length - ATTENTION_SHOWN} more`);
}
