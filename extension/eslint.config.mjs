import eslint from '@eslint/js';
import tseslint from 'typescript-eslint';

/** Attributes and options that a reader sees. */
const SEEN = new Set(['title', 'aria-label', 'placeholder', 'label', 'caption']);
const WORDS = /\p{L}{3}/u;

/** What a reader sees goes through `trans`: elements' texts and what SEEN names must not be plain words. */
const translated = {
  create(context) {
    const check = node => {
      if (node.type === 'Literal' && typeof node.value === 'string' && WORDS.test(node.value)) {
        context.report({ node, message: 'not translated: trans.__(…)' });
      } else if (node.type === 'TemplateLiteral') {
        node.quasis.filter(({ value }) => WORDS.test(value.cooked)).forEach(() => context.report({ node, message: 'not translated' }));
        node.expressions.forEach(check);
      } else if (node.type === 'ConditionalExpression') {
        [node.consequent, node.alternate].forEach(check);
      } else if (node.type === 'LogicalExpression' || node.type === 'BinaryExpression') {
        [node.left, node.right].forEach(check);
      }
    };
    return {
      CallExpression({ callee, arguments: given }) {
        const texts = { h: given.slice(3), setText: given.slice(1) }[callee.name] ?? [];
        texts.forEach(check);
      },
      NewExpression: ({ callee, arguments: given }) => /Error$/.test(callee.name) && given.slice(0, 1).forEach(check),
      AssignmentExpression: ({ left, right }) =>
        left.type === 'MemberExpression' && ['title', 'textContent', 'caption', 'placeholder'].includes(left.property.name) && check(right),
      Property: ({ key, value }) => SEEN.has(key.name ?? key.value) && check(value)
    };
  }
};

export default tseslint.config(
  { ignores: ['**/lib/**', '**/lib-test/**', '**/node_modules/**', '**/test-results/**'] },
  eslint.configs.recommended,
  ...tseslint.configs.recommended,
  {
    rules: {
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      eqeqeq: 'error'
    }
  },
  {
    files: ['extension/src/**'],
    plugins: { rankroom: { rules: { translated } } },
    rules: { 'rankroom/translated': 'error' }
  },
  {
    // Only api.ts, and what is in api/, asks the server.
    files: ['extension/src/**'],
    ignores: ['extension/src/api.ts', 'extension/src/api/**'],
    rules: { 'no-restricted-globals': ['error', 'fetch', 'XMLHttpRequest', 'WebSocket'] }
  },
  {
    // What a log is made of works without a browser, and so do its tests.
    files: ['extension/src/log/**', 'extension/src/*.ts'],
    ignores: ['extension/src/api.ts'],
    rules: { 'no-restricted-globals': ['error', 'fetch', 'document', 'window', 'HTMLElement'] }
  },
  {
    files: ['tests/ui/**'],
    rules: {
      'no-restricted-properties': [
        'error',
        { property: 'waitForTimeout', message: 'wait for what is to be seen, not for a time' }
      ]
    }
  },
  {
    // Generators are run to their end by empty loops.
    files: ['**/test/**'],
    rules: { '@typescript-eslint/no-unused-expressions': 'off' }
  },
  {
    files: ['**/scripts/**'],
    languageOptions: { globals: { process: 'readonly', console: 'readonly', URL: 'readonly' } }
  }
);
