// Conditions as one writes them, "lang = en, year >= 2020", as the filter of a search.
const OPERATORS = { "=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte" };
const CONDITION = /^\s*([^\s=!<>]+)\s*(=|!=|>=|<=|>|<)\s*(.+?)\s*$/;

// The filter, or null for an empty text; a condition that cannot be read is thrown in its own words.
export function parseFilter(text) {
  const found = {};
  for (const part of split(text)) {
    const [, field, operator, value] = part.match(CONDITION) ?? [];
    if (field === undefined) throw new Error(`“${part.trim()}” is not a condition; expected for example lang = en or year >= 2020`);
    found[field] = { ...found[field], [OPERATORS[operator]]: read(value) };
  }
  return Object.keys(found).length ? found : null;
}

// A condition as text, which `parseFilter` reads.
export function writeCondition(field, value) {
  const text = String(value);
  const isPlain = typeof value !== "string" || (read(text) === text && !/[",]/.test(text));
  return `${field} = ${isPlain ? text : JSON.stringify(value)}`;
}

// At commas outside of quotation marks.
function split(text) {
  return (text.match(/("(\\.|[^"\\])*"|[^,])+/g) ?? []).filter((part) => part.trim());
}

// A number, true, false or null, a text in quotation marks, or else the text itself.
function read(value) {
  try {
    const found = JSON.parse(value);
    return typeof found === "object" && found !== null ? value : found;
  } catch {
    return value;
  }
}
