// Writes TypeScript from the package's JSON Schemas, so that nobody mirrors Python by hand.
// `node scripts/schema.mjs --check` fails if a file on disk says something else.
import { readFileSync, writeFileSync } from 'node:fs';

const MADE = [
  ['record/record.schema.json', 'schema.ts'],
  ['cluster/cluster_status.schema.json', 'cards.ts']
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

for (const [from, to] of MADE) {
  const source = new URL(`../../lab/rankroom/${from}`, import.meta.url);
  const target = new URL(`../src/${to}`, import.meta.url);
  const text = [
    `// Made from lab/rankroom/${from} by \`npm run build:schema\`; do not edit.`,
    ...Object.entries(JSON.parse(readFileSync(source, 'utf8')).$defs).map(declare),
    ''
  ].join('\n\n').replace(/\n+$/, '\n');
  if (!process.argv.includes('--check')) {
    writeFileSync(target, text);
  } else if (readFileSync(target, 'utf8') !== text) {
    console.error(`src/${to} is not what ${from} says: run \`npm run build:schema\``);
    process.exit(1);
  }
}
