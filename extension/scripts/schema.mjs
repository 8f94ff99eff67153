// Writes TypeScript from the package's JSON Schemas, so that nobody mirrors Python by hand.
// `node scripts/schema.mjs --check` fails if a file on disk says something else.
import { readFileSync, writeFileSync } from 'node:fs';

const MADE = [
  ['record/record.schema.json', 'schema.ts'],
  ['cluster/cluster_status.schema.json', 'cluster_status.ts'],
  ['workshop/workshop_answers.schema.json', 'workshop_answers.ts']
];
const PLAIN = {
  integer: 'number',
  number: 'number',
  string: 'string',
  boolean: 'boolean',
  null: 'null',
  object: '{ [key: string]: unknown }'
};

function type(node, indent) {
  if (node.$ref) {
    return node.$ref.replace('#/$defs/', '');
  }
  if ('const' in node) {
    return JSON.stringify(node.const).replace(/"/g, "'");
  }
  if (node.enum) {
    return node.enum.map(value => type({ const: value })).join(' | ');
  }
  const union = node.oneOf ?? node.anyOf;
  if (union) {
    return union.map(part => type(part, indent)).join(' | ');
  }
  if (Array.isArray(node.type)) {
    return node.type.map(name => type({ ...node, type: name }, indent)).join(' | ');
  }
  if (node.type === 'array') {
    const item = type(node.items, indent);
    return item.includes(' ') ? `Array<${item}>` : `${item}[]`;
  }
  if (node.type === 'object' && node.properties) {
    return object(node, indent);
  }
  if (node.type === 'object' && node.additionalProperties?.type) {
    return `{ [key: string]: ${type(node.additionalProperties, indent)} }`;
  }
  if (!(node.type in PLAIN)) {
    throw new Error(`no TypeScript for ${JSON.stringify(node)}`);
  }
  return PLAIN[node.type];
}

function object(node, indent) {
  const inner = `${indent}  `;
  const required = new Set(node.required ?? []);
  const lines = Object.entries(node.properties).flatMap(([name, part]) => [
    ...comment(part, inner),
    `${inner}${name}${required.has(name) ? '' : '?'}: ${type(part, inner)};`
  ]);
  if (node.additionalProperties === true) {
    lines.push(`${inner}[key: string]: unknown;`);
  }
  return ['{', ...lines, `${indent}}`].join('\n');
}

function comment(node, indent) {
  return node.description ? [`${indent}/** ${node.description} */`] : [];
}

function declare([name, node]) {
  const isInterface = node.type === 'object' && node.properties;
  const text = isInterface ? `interface ${name} ${object(node, '')}` : `type ${name} = ${type(node, '')};`;
  return [...comment(node, ''), `export ${text}`].join('\n');
}

/** What a reader has to check, by name: the JSON types of the fields that are required. */
function required($defs) {
  const kindOf = node => {
    if (node.$ref) {
      return kindOf($defs[node.$ref.replace('#/$defs/', '')]);
    }
    const kind = node.type ?? typeof (node.const ?? node.enum[0]);
    return kind === 'integer' ? 'number' : kind;
  };
  const table = name =>
    Object.fromEntries($defs[name].required.map(field => [field, kindOf($defs[name].properties[field])]));
  const events = $defs.Event.oneOf.map(({ $ref }) => $ref.replace('#/$defs/', ''));
  const checks = {
    Run: table('Run'),
    ...Object.fromEntries(events.map(name => [$defs[name].properties.kind.const, table(name)]))
  };
  const lines = Object.entries(checks).map(([name, fields]) => {
    const pairs = Object.entries(fields).map(([field, kind]) => `${field}: '${kind}'`);
    return `  ${name}: { ${pairs.join(', ')} }`;
  });
  return [
    '/** The required fields of a run, and of each kind of event. */',
    "export const REQUIRED: { [what: string]: { [field: string]: 'number' | 'string' | 'array' | 'object' } } = {",
    lines.join(',\n'),
    '};'
  ].join('\n');
}

for (const [from, to] of MADE) {
  const source = new URL(`../../lab/rankroom/${from}`, import.meta.url);
  const target = new URL(`../src/${to}`, import.meta.url);
  const { $defs } = JSON.parse(readFileSync(source, 'utf8'));
  const text = [
    `// Made from lab/rankroom/${from} by \`npm run build:schema\`; do not edit.`,
    ...Object.entries($defs).map(declare),
    ...($defs.Event ? [required($defs)] : []),
    ''
  ].join('\n\n').replace(/\n+$/, '\n');
  if (!process.argv.includes('--check')) {
    writeFileSync(target, text);
  } else if (readFileSync(target, 'utf8') !== text) {
    console.error(`src/${to} is not what ${from} says: run \`npm run build:schema\``);
    process.exit(1);
  }
}
