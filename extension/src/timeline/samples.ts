/** Utilization of each rank: samples on the run's clock. */
import type { RankInfo, SampleEvent } from '../schema';
import { trans } from '../translation';
import { FARTHEST, offsetOf } from './spans';

/** The sampled quantities, in the order of their strips. */
export const METERS = ['cpu', 'gpu', 'memory', 'gpu_memory'] as const;
export type Meter = (typeof METERS)[number];

/** Return the label of a sampled quantity. */
export function meterName(meter: Meter): string {
  return { cpu: trans.__('cpu'), gpu: trans.__('gpu'), memory: trans.__('memory'), gpu_memory: trans.__('gpu memory') }[meter];
}

export interface Curve {
  t: number[];
  value: number[];
  most: number;
}

export class Samples {
  version = 0;
  /** The number of values of all curves. */
  count = 0;
  private byRank = new Map<number, Map<Meter, Curve>>();
  private offsets = new Map<number, number>();

  take(event: SampleEvent): void {
    const t = event.t - (this.offsets.get(event.rank) ?? 0);
    if (!Number.isFinite(t) || Math.abs(t) > FARTHEST) {
      return;
    }
    for (const meter of METERS) {
      const value = event[meter];
      if (typeof value === 'number' && Number.isFinite(value) && value >= 0) {
        const curve = this.make(event.rank, meter);
        // A rank reports in order; if its clock jumped back, skip the sample, so that the curve does not fold back.
        if (!curve.t.length || t >= curve.t[curve.t.length - 1]) {
          curve.t.push(t);
          curve.value.push(value);
          this.count += 1;
          curve.most = Math.max(curve.most, value);
        }
      }
    }
    this.version += 1;
  }

  setClocks(ranks: readonly RankInfo[]): void {
    for (const { rank, clock } of ranks) {
      const offset = offsetOf(clock);
      const by = (this.offsets.get(rank) ?? 0) - offset;
      this.offsets.set(rank, offset);
      if (by !== 0) {
        this.byRank.get(rank)?.forEach(curve => (curve.t = curve.t.map(t => t + by)));
        this.version += 1;
      }
    }
  }

  /** Return the curves of a rank that have at least two samples. */
  of(rank: number): Array<[Meter, Curve]> {
    const curves = this.byRank.get(rank);
    return METERS.flatMap(meter => {
      const curve = curves?.get(meter);
      return curve && curve.t.length > 1 ? [[meter, curve] as [Meter, Curve]] : [];
    });
  }

  private make(rank: number, meter: Meter): Curve {
    let curves = this.byRank.get(rank);
    if (!curves) {
      curves = new Map();
      this.byRank.set(rank, curves);
    }
    let curve = curves.get(meter);
    if (!curve) {
      curve = { t: [], value: [], most: 0 };
      curves.set(meter, curve);
    }
    return curve;
  }
}
