// A CommonJS package that `@grafana/ui` imports as an ES module; bundlers disagree on its default.
export { Scrollbars, Scrollbars as default } from './node_modules/react-custom-scrollbars-2/lib/index.js';
