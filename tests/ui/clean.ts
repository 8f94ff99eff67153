/** After all tests, remove the records and notebooks that they have made. */
import { rmSync } from 'node:fs';

export default function clean(): void {
  const home = process.env.RANKROOM_UI_HOME;
  if (home?.includes('rankroom-ui-')) {
    rmSync(home, { recursive: true, force: true });
  }
}
