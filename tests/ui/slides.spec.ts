/** The slides of the lessons, opened from disk without a network (tests/dist/test_slides.py). */
import { expect, test, type Page } from '@playwright/test';

const FILE = process.env.RANKROOM_UI_SLIDES ?? '';
const TITLES = JSON.parse(process.env.RANKROOM_UI_TITLES ?? '[]') as string[];

/** The part of reveal.js that the tests use. */
interface IDeck {
  isReady(): boolean;
  slide(h: number, v: number): void;
  getIndices(): { h: number; v: number };
  getCurrentSlide(): HTMLElement;
  getConfig(): { width: number; height: number };
  getSlides(): HTMLElement[];
  next(): void;
  isLastSlide(): boolean;
  getSlideNotes(): string | null;
}
declare const Reveal: IDeck;

test.skip(FILE === '', 'there are no slides: tests/dist starts this with some');

/** Open the page; return all errors, and all requests to a network. */
async function open(page: Page): Promise<string[]> {
  const complaints: string[] = [];
  page.on('console', message => message.type() === 'error' && complaints.push(message.text()));
  page.on('pageerror', error => complaints.push(error.message));
  page.on('request', request => !request.url().startsWith('file:') && !request.url().startsWith('data:') && complaints.push(request.url()));
  await page.goto(`file://${FILE}`);
  await page.waitForFunction(() => Reveal.isReady());
  return complaints;
}

test('the slides cover every lesson, and none overflows', async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 800 });
  const complaints = await open(page);
  const found = await page.evaluate(() => {
    const { width, height } = Reveal.getConfig();
    const slides: { at: string; title: string; overflows: string; notes: boolean }[] = [];
    Reveal.slide(0, 0);
    for (;;) {
      const slide = Reveal.getCurrentSlide();
      const { h, v } = Reveal.getIndices();
      const wide = [...slide.querySelectorAll<HTMLElement>('pre, table, svg')].find(
        each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0 || each.getBoundingClientRect().right > innerWidth + 1
      );
      const overflows = slide.scrollHeight > height ? `${slide.scrollHeight} px high` : slide.scrollWidth > width || wide ? `too wide: ${wide?.textContent?.slice(0, 80) ?? ''}` : '';
      slides.push({ at: `${h}.${v}`, title: slide.querySelector('h1')?.textContent ?? '', overflows, notes: Boolean(Reveal.getSlideNotes()) });
      if (Reveal.isLastSlide()) {
        return { slides, count: Reveal.getSlides().length };
      }
      Reveal.next();
    }
  });
  expect(found.slides.length).toBe(found.count);
  expect(found.slides.filter(each => each.overflows)).toEqual([]);
  const titles = found.slides.map(each => each.title.replace('¶', '').trim()).filter(Boolean);
  expect(titles).toEqual(TITLES);
  expect(found.slides.some(each => each.notes)).toBe(true);
  expect(complaints).toEqual([]);
});

test('arrow keys navigate slides, and lesson links lead to their slides', async ({ page }) => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await open(page);
  await page.keyboard.press('ArrowRight');
  await expect.poll(() => page.evaluate(() => Reveal.getIndices().h)).toBe(1);
  await page.keyboard.press('ArrowDown');
  await expect.poll(() => page.evaluate(() => Reveal.getIndices().v)).toBe(1);
  await page.evaluate(() => Reveal.slide(0, 0));
  const link = page.locator('.reveal .slides a[href^="#/"]').first();
  const target = Number((await link.getAttribute('href'))?.slice(2));
  await link.evaluate(each => (each as HTMLAnchorElement).click());
  await expect.poll(() => page.evaluate(() => Reveal.getIndices().h)).toBe(target);
  await page.evaluate(() => Reveal.slide(3, 2));
  await page.screenshot({ path: test.info().outputPath('slides.png') });
});
