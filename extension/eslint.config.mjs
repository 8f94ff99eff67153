import eslint from '@eslint/js';
import tseslint from 'typescript-eslint';

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
