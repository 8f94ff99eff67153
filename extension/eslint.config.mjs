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
    // Generators are run to their end by empty loops.
    files: ['**/test/**'],
    rules: { '@typescript-eslint/no-unused-expressions': 'off' }
  },
  {
    files: ['**/scripts/**'],
    languageOptions: { globals: { process: 'readonly', console: 'readonly', URL: 'readonly' } }
  }
);
