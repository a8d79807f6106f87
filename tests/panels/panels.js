// Draws a dashboard with Grafana's own components, from its JSON and what Prometheus answers.
//
// `window.SCENE` has both, `window.REPORT` what each panel shows and what is wrong with it. Only the
// frame around Grafana's components is made here: layout, state timelines, which no package has, and
// how an answer becomes a data frame.

import { Component, createElement as h, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
import {
  applyFieldOverrides, createDataFrame, createTheme, dataLinksOverrideProcessor, dateTime,
  displayNameOverrideProcessor, FieldConfigOptionsRegistry, FieldType, fieldReducers,
  getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues, getValueFormats,
  identityOverrideProcessor, numberOverrideProcessor, standardTransformers, standardTransformersRegistry,
  thresholdsOverrideProcessor, transformDataFrame, unitOverrideProcessor, valueMappingsOverrideProcessor,
} from '@grafana/data';
import {
  BarGauge, BigValue, PanelContextProvider, PanelContextRoot, Table, ThemeContext, TimeSeries, VizRepeater,
} from '@grafana/ui';

// Grafana's grid at the width of a usual window.
const WIDTH = 1600;
const COLUMNS = 24;
const ROW = 30;
const MARGIN = 8;
const HEADER = 32;
const PADDING = 8;

const { dashboard, answers, from, to, step, variables, absent, mode } = window.SCENE;
const theme = createTheme({ colors: { mode } });
const timeZone = 'utc';
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const units = new Set(getValueFormats().flatMap((group) => group.submenu.map((unit) => unit.value)));
const report = [];

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map((it) => ({
    id: it.id, name: it.name, transformation: () => Promise.resolve(it),
  })));

// ---- What Grafana does between a panel's JSON and its components ----

/** Replaces `$name` and `${name}`, and `${__data.fields.NAME}` by what the row of a table has. */
function replace(text, scoped) {
  const known = { ...variables, __url_time_range: `from=${from}&to=${to}` };
  return text.replace(/\$\{__data\.fields\.(?:"([^"]+)"|([^}]+))\}/g, (whole, quoted, plain) => {
    const { frame, rowIndex } = scoped?.__dataContext?.value ?? {};
    const field = frame?.fields.find((it) => getFieldDisplayName(it, frame) === (quoted ?? plain));
    return field ? field.values[rowIndex] : whole;
  }).replace(/\$(?:\{(\w+)(?::\w+)?\}|(\w+))/g, (whole, braced, bare) => known[braced ?? bare] ?? whole);
}

const STANDARD = {
  unit: unitOverrideProcessor, min: numberOverrideProcessor, max: numberOverrideProcessor,
  decimals: numberOverrideProcessor, displayName: displayNameOverrideProcessor,
  noValue: identityOverrideProcessor, thresholds: thresholdsOverrideProcessor,
  mappings: valueMappingsOverrideProcessor, links: dataLinksOverrideProcessor, color: identityOverrideProcessor,
};

/** The properties that a field of this panel can have. */
function properties(panel) {
  const custom = new Set(Object.keys(panel.fieldConfig.defaults.custom ?? {}));
  for (const property of panel.fieldConfig.overrides.flatMap((it) => it.properties)) {
    if (property.id.startsWith('custom.')) {
      custom.add(property.id.slice('custom.'.length));
    } else if (!STANDARD[property.id]) {
      throw new Error(`unknown property ${property.id}`);
    }
  }
  const item = (id, path, process, isCustom) =>
    ({ id, path, name: path, isCustom, process, shouldApply: () => true, settings: {} });
  return new FieldConfigOptionsRegistry(() => [
    ...Object.entries(STANDARD).map(([id, process]) => item(id, id, process, false)),
    ...[...custom].map((path) => item(`custom.${path}`, path, identityOverrideProcessor, true)),
  ]);
}

/** A sample as JavaScript has it. */
const number = (text) => ({ NaN: null, '+Inf': Infinity, '-Inf': -Infinity }[text] ?? Number(text));

/** What a series is called. */
function named(target, labels) {
  const format = target.legendFormat;
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
  }
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${value}"`);
  return pairs.length ? `{${pairs.join(', ')}}` : target.expr;
}

/** The frames of a query: one for each series, or one for all of a table. */
function frames(panel, target) {
  const series = answers[panel.id][target.refId];
  if (target.format === 'table') {
    const labels = [...new Set(series.flatMap((it) => Object.keys(it.metric)))].sort();
    const value = panel.targets.length > 1 ? `Value #${target.refId}` : 'Value';
    return [createDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: series.map((it) => it.value[0] * 1000) },
        ...labels.map((name) =>
          ({ name, type: FieldType.string, values: series.map((it) => it.metric[name]) })),
        { name: value, type: FieldType.number, values: series.map((it) => number(it.value[1])) },
      ],
    })];
  }
  return series.map(({ metric, values, value }) => createDataFrame({
    refId: target.refId,
    fields: [
      {
        name: 'Time', type: FieldType.time, config: { interval: step * 1000 },
        values: (values ?? [value]).map(([time]) => time * 1000),
      },
      {
        name: 'Value', type: FieldType.number, labels: metric,
        config: { displayNameFromDS: named(target, metric) },
        values: (values ?? [value]).map(([, text]) => number(text)),
      },
    ],
  }));
}

async function dataOf(panel) {
  const plain = panel.targets.flatMap((target) => frames(panel, target));
  const transformed = await lastValueFrom(
    transformDataFrame(panel.transformations ?? [], plain, { interpolate: replace }));
  return applyFieldOverrides({
    data: transformed, fieldConfig: panel.fieldConfig, fieldConfigRegistry: properties(panel),
    replaceVariables: replace, theme, timeZone,
  });
}

// ---- The kinds of panels ----

const numbers = (data) =>
  data.flatMap((frame) => frame.fields.filter((it) => it.type === FieldType.number)
    .map((field) => ({ frame, field, name: getFieldDisplayName(field, frame, data) })));

const displayed = (panel, data, sparkline) => getFieldDisplayValues({
  data, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
  replaceVariables: replace, sparkline, theme, timeZone,
});

const VALUE = { auto: 'auto', horizontal: 'horizontal', vertical: 'vertical' };

function Stat({ panel, data, width, height }) {
  const { options } = panel;
  const values = displayed(panel, data, options.graphMode !== 'none');
  // As Grafana's stat panel does: of a single value, the name is left out.
  const textMode = options.textMode === 'auto' && values.length === 1 ? 'value' : options.textMode;
  return h(VizRepeater, {
    getValues: () => values, getAlignmentFactors: getDisplayValueAlignmentFactors, width, height,
    source: data, itemSpacing: 3, autoGrid: true, renderCounter: 0, orientation: VALUE[options.orientation],
    renderValue: ({ value, width, height, alignmentFactors, count }) => h(BigValue, {
      value: value.display, count, sparkline: value.sparkline, colorMode: options.colorMode,
      graphMode: options.graphMode, justifyMode: options.justifyMode, textMode,
      alignmentFactors, parentOrientation: 'horizontal', width, height, theme, wideLayout: options.wideLayout,
    }),
  });
}

function Bars({ panel, data, width, height }) {
  const { options } = panel;
  const values = displayed(panel, data, false);
  return h(VizRepeater, {
    getValues: () => values, getAlignmentFactors: getDisplayValueAlignmentFactors, width, height,
    source: data, itemSpacing: 8, renderCounter: 0, orientation: options.orientation,
    minVizHeight: options.minVizHeight, minVizWidth: options.minVizWidth, maxVizHeight: options.maxVizHeight,
    renderValue: ({ value, width, height, alignmentFactors, orientation, count }) => h(BarGauge, {
      value: value.display, width, height, orientation, field: value.field, theme, itemSpacing: 8,
      lcdCellWidth: 12, displayMode: options.displayMode, alignmentFactors, showUnfilled: options.showUnfilled,
      valueDisplayMode: options.valueMode, namePlacement: options.namePlacement,
      display: value.view?.getFieldDisplayProcessor(value.colIndex), isOverflow: count * 24 > height,
    }),
  });
}

function Lines({ panel, data, width, height }) {
  const legend = {
    ...panel.options.legend,
    // The legend asks the field for its calculations.
    calcs: panel.options.legend.calcs.filter((it) => fieldReducers.get(it)),
  };
  return h(TimeSeries, {
    frames: data, structureRev: 1, timeRange, timeZone, width, height, legend, options: panel.options, theme,
  });
}

function Rows({ panel, data, width, height }) {
  return h(Table, {
    data: data[0], width, height, initialSortBy: panel.options.sortBy, cellHeight: panel.options.cellHeight,
    fieldConfig: panel.fieldConfig, timeRange, replaceVariables: replace,
  });
}

/** State timelines, which only Grafana itself draws: a line for each series, a box for each state. */
function States({ data, width, height }) {
  const lines = numbers(data);
  const names = Math.min(width / 2, 8 + 7 * Math.max(...lines.map(({ name }) => name.length)));
  const tall = Math.min(40, (height - 20) / lines.length);
  const at = (time) => names + ((time - from) / (to - from)) * (width - names);
  const boxes = lines.flatMap(({ frame, field, name }, line) => {
    const times = frame.fields.find((it) => it.type === FieldType.time).values;
    const found = [];
    for (const [index, time] of times.entries()) {
      const value = field.values[index];
      const last = found.at(-1);
      if (value === null || (last?.value === value && time - last.end <= 2000 * step)) {
        if (last && value !== null) last.end = time;
        continue;
      }
      if (last && time - last.end <= 2000 * step) last.end = time;
      found.push({ value, start: time, end: time, line });
    }
    return [
      h('div', { key: name, className: 'name', style: { top: line * tall, width: names - 8, height: tall } }, name),
      ...found.map((box) => {
        const { text, color } = field.display(box.value);
        return h('div', {
          key: `${name} ${box.start}`, className: 'state', style: {
            top: line * tall + tall * 0.075, height: tall * 0.85, left: at(box.start),
            width: Math.max(2, at(box.end) - at(box.start)), background: color,
            color: theme.colors.getContrastText(color),
          },
        }, text);
      }),
    ];
  });
  return h('div', { className: 'states' }, boxes);
}

const KINDS = {
  stat: Stat, bargauge: Bars, timeseries: Lines, table: Rows, 'state-timeline': States,
};

// ---- What is wrong with a panel ----

/** What Grafana's display does to a number that is not zero, of a field with a unit. */
function unitProblems({ field, name }) {
  const unit = field.config.unit;
  if (!unit || unit === 'none' || unit === 'short' || unit.startsWith('dateTime')) return [];
  if (!units.has(unit) && !/^(suffix|prefix|si):/.test(unit)) {
    return [`${name}: Grafana has no unit ${unit}`];
  }
  const shown = field.display(1.5);
  const mapped = field.config.mappings?.length > 0;
  return mapped || shown.prefix || shown.suffix ? [] : [`${name}: ${unit} shows ${shown.text} without its unit`];
}

function problems(panel, data, element) {
  const found = [];
  const lines = numbers(data);
  const finite = (values) => values.some((it) => Number.isFinite(it));
  for (const line of lines) {
    // A column of a table may be empty: a dash says so.
    if (panel.type !== 'table' && line.frame.length > 0 && !finite(line.field.values)) found.push(`${line.name}: a line without data`);
    // A single value is shown without its name.
    const alone = panel.type === 'stat' && lines.length === 1;
    if (!alone && /[{}]|__name__|^Value|^\s|\s$|\s\s|\/$|^\//.test(line.name)) found.push(`"${line.name}" is no name`);
    found.push(...unitProblems(line));
  }
  if (panel.type === 'table') {
    for (const field of data[0]?.fields ?? []) {
      const name = getFieldDisplayName(field, data[0]);
      if (!/^[A-Z]/.test(name)) found.push(`the column "${name}" has a raw name`);
    }
    for (const header of element.querySelectorAll('[role=columnheader]')) {
      const { right } = header.getBoundingClientRect();
      const text = document.createRange();
      text.selectNodeContents(header.querySelector('button') ?? header.firstChild);
      const cut = text.getBoundingClientRect().width > header.clientWidth - 12;
      if (cut) found.push(`the column "${header.textContent}" has a name that is cut`);
      if (right > element.getBoundingClientRect().right + 1) found.push(`the column "${header.textContent}" is out of sight`);
    }
  } else if (new Set(lines.map(({ name }) => name)).size < lines.length) {
    found.push('two lines have the same name');
  }
  if (panel.type === 'timeseries' && lines.length > 0) {
    // Lines are colored, axes and grids are gray.
    const canvas = element.querySelector('canvas');
    const pixels = canvas?.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data ?? [];
    let colored = 0;
    for (let index = 0; index < pixels.length; index += 4) {
      const [red, green, blue, alpha] = pixels.slice(index, index + 4);
      if (alpha > 60 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40) colored += 1;
    }
    if (colored < 10) found.push('nothing is drawn');
  } else if (!element.textContent.trim()) {
    found.push('nothing is written');
  }
  const title = element.closest('.panel').querySelector('.title');
  if (title.scrollWidth > title.clientWidth) found.push('the title is cut');
  return found;
}

// ---- The page ----

class Guard extends Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  componentDidCatch(error) {
    report.push({ id: this.props.panel.id, title: this.props.panel.title, lines: 0, problems: [`throws: ${error}`] });
  }
  render() {
    return this.state.error ? String(this.state.error) : this.props.children;
  }
}

const place = ({ x, y, w, h: tall }) => {
  const column = (WIDTH - (COLUMNS - 1) * MARGIN) / COLUMNS;
  return {
    left: x * (column + MARGIN), top: y * (ROW + MARGIN),
    width: w * column + (w - 1) * MARGIN, height: tall * ROW + (tall - 1) * MARGIN,
  };
};

function Panel({ panel, data }) {
  const box = place(panel.gridPos);
  if (panel.type === 'row') return h('h2', { style: box }, panel.title);
  const inside = { width: box.width - 2 * PADDING - 2, height: box.height - HEADER - PADDING - 2 };
  const empty = !data.some((frame) => frame.length > 0);
  const links = (panel.links ?? []).map((link) =>
    h('a', { key: link.url, href: replace(link.url), title: link.title }, '↗'));
  const content = empty && panel.type !== 'stat'
    ? h('div', { className: 'empty' }, panel.fieldConfig.defaults.noValue ?? 'No data')
    : h(KINDS[panel.type], { panel, data, ...inside });
  return h('section', { className: 'panel', id: `panel-${panel.id}`, style: box },
    h('header', {}, h('div', { className: 'title' }, panel.title),
      h('span', { className: 'info', title: panel.description }, 'i'), links),
    h('div', { className: 'content', style: inside }, h(Guard, { panel }, content)));
}

const STYLE = `
  body { margin: 8px; background: ${theme.colors.background.canvas}; color: ${theme.colors.text.primary};
    font: 14px/1.57 Inter, Helvetica, Arial, sans-serif; width: ${WIDTH}px; }
  * { box-sizing: border-box; }
  main { position: relative; }
  h2 { position: absolute; margin: 0; font-size: 16px; font-weight: 500; }
  button { color: inherit; background: none; border: 0; font: inherit; padding: 0; }
  .panel { position: absolute; background: ${theme.colors.background.primary};
    border: 1px solid ${theme.colors.border.weak}; border-radius: 2px; }
  header { display: flex; gap: 8px; height: ${HEADER}px; padding: 0 8px; align-items: center; }
  .title { font-weight: 500; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
  .info, header a { color: ${theme.colors.text.secondary}; text-decoration: none; }
  .content { margin: 0 ${PADDING}px; position: relative; overflow: hidden; }
  .empty { display: grid; place-content: center; height: 100%; color: ${theme.colors.text.secondary}; }
  .states { position: relative; height: 100%; font-size: 12px; }
  .states > div { position: absolute; overflow: hidden; white-space: nowrap; display: flex; align-items: center; }
  .state { padding-left: 4px; }
  .name { justify-content: flex-end; }
`;

function Page({ panels }) {
  const [context] = useState(() => ({ ...PanelContextRoot._currentValue, eventsScope: 'global' }));
  const bottom = Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h));
  return h(ThemeContext.Provider, { value: theme },
    h(PanelContextProvider, { value: context },
      h('style', {}, STYLE), h('h1', { style: { fontSize: 18, margin: '0 0 8px' } }, dashboard.title),
      h('main', { style: { height: bottom * (ROW + MARGIN) } },
        panels.map(({ panel, data }) => h(Panel, { key: panel.id, panel, data })))));
}

/** Every place that a panel leads to: its own links and those of its cells. */
function linksOf(panel, data) {
  const cells = data.flatMap((frame) => frame.fields.flatMap((field) =>
    (field.config.links?.length ? Array.from(field.values.keys()) : [])
      .flatMap((rowIndex) => field.getLinks({ valueRowIndex: rowIndex }).map((link) => link.href))));
  return [...(panel.links ?? []).map((link) => replace(link.url)), ...cells];
}

async function main() {
  const panels = [];
  for (const panel of dashboard.panels) {
    panels.push({ panel, data: panel.type === 'row' ? [] : await dataOf(panel) });
  }
  createRoot(document.body.appendChild(document.createElement('div'))).render(h(Page, { panels }));
  // uPlot draws in a later task, and a table measures itself first.
  await new Promise((resolve) => setTimeout(resolve, 1500));
  for (const { panel, data } of panels.filter(({ panel }) => panel.type !== 'row')) {
    if (report.some((it) => it.id === panel.id)) continue;
    const empty = !data.some((frame) => frame.length > 0);
    const said = problems(panel, data, document.querySelector(`#panel-${panel.id} .content`));
    if (empty && !absent.includes(panel.id)) said.push('no data');
    const lines = panel.type === 'table' ? 1 : numbers(data).length;
    report.push({ id: panel.id, title: panel.title, lines, links: linksOf(panel, data), problems: said });
  }
}

main().catch((error) => report.push({ id: 0, title: dashboard.title, lines: 0, problems: [`throws: ${error.stack}`] }))
  .finally(() => { window.REPORT = report; });
