/** The sidebar's requests to the server: clusters, actions on them, sites, and ssh's questions. */
import { type Api, parsed, textOf } from '../api';
import type { ClusterStatus, ClusterList, DryRun, Load, Question, SiteChoice, StartRequest } from '../cluster_status';
import type { Run } from '../schema';

/** The actions of a card's buttons. */
export type Act = 'stop' | 'restart' | 'resize' | 'interrupt';

export class ClustersApi {
  constructor(private api: Api) {}

  async clusters(): Promise<ClusterList> {
    return (await this.get(['clusters'])) as ClusterList;
  }

  async load(cluster: ClusterStatus): Promise<Map<number, Load>> {
    const { ranks } = (await this.get(['clusters', cluster.name, 'look'])) as { ranks?: { [rank: string]: Load } };
    return new Map(Object.entries(ranks ?? {}).map(([rank, load]) => [Number(rank), load]));
  }

  /** Return the output of the cluster's job. */
  async log(name: string): Promise<string> {
    return textOf(await this.api.ask('GET', ['clusters', name, 'log'], {}));
  }

  /** Start a cluster; return its name. */
  async start(site: string, request: StartRequest): Promise<string> {
    const { name } = (await this.post(['clusters'], { ...request, site })) as { name: string };
    return name;
  }

  /** Act on a cluster; return what was done, in a sentence. */
  async act(name: string, act: Act, request: StartRequest = {}): Promise<string> {
    const { message } = (await this.post(['clusters', name, act], request)) as { message: string };
    return message;
  }

  async sites(): Promise<SiteChoice[]> {
    return ((await this.get(['sites'])) as { sites: SiteChoice[] }).sites;
  }

  /** Return the job script that a start would submit, or the errors of the request. */
  async dryRun(site: string, request: StartRequest): Promise<DryRun> {
    return (await this.post(['sites', site, 'script'], request)) as DryRun;
  }

  async questions(): Promise<Question[]> {
    return ((await this.get(['questions'])) as { questions: Question[] }).questions;
  }

  /** Answer a question of ssh; with null, ssh gets no answer. */
  async answer(question: string, text: string | null): Promise<void> {
    await this.post(['questions', question], text === null ? {} : { answer: text });
  }

  /** Return the newest runs. */
  async runs(limit: number): Promise<Run[]> {
    return ((await parsed(await this.api.ask('GET', ['runs'], { limit }))) as { runs: Run[] }).runs;
  }

  private async get(parts: string[]): Promise<unknown> {
    return parsed(await this.api.ask('GET', parts, {}));
  }

  private async post(parts: string[], body: StartRequest): Promise<unknown> {
    return parsed(await this.api.ask('POST', parts, {}, undefined, body));
  }
}
