/** After all tests: the records and notebooks they made go. */
import { rmSync } from 'node:fs';

export default function clean(): void {
  const home = process.env.RANKROOM_UI_HOME;
  if (home?.includes('rankroom-ui-')) {
    rmSync(home, { recursive: true, force: true });
  }
}
