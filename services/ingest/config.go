package ingest

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Config of a collector. docs/guide/ingest.md explains every setting.
type Config struct {
	// Base has the id that is in every manifest that this collector writes.
	service.Base

	AuthorityID string      `koanf:"authority_id" help:"acceptance authority that the bucket must be; empty takes the bucket's own"`
	Store       StoreConfig `koanf:"store"`

	Acceptance string `koanf:"acceptance" help:"s3_manifest, local_spool, or global: one of several regions, by the word of the identity linearizer"`
	// Region, Coordinator and TakeOver are for acceptance global.
	Region      string            `koanf:"region" help:"name of the region that this collector and its bucket are in" needs:"acceptance=global"`
	Coordinator CoordinatorConfig `koanf:"coordinator" needs:"acceptance=global"`
	TakeOver    time.Duration     `koanf:"take_over" help:"a batch that another region has claimed for so long, and not accepted, is claimed by this one" needs:"acceptance=global"`

	InlineBelow config.Bytes `koanf:"inline_below" help:"frames of fewer bytes are stored in their manifests, with one request in place of three; at most 1MiB, 0 is none. Every service must know such manifests first"`
	MarkerReads string       `koanf:"marker_reads" help:"always: the condemned marker of every blob is read before the answer, a GET a batch; epochs: it is not, where the journal says that the blob is not condemned. Every service must know such a journal first, and a reconciler must have gc.epochs"`
	// EpochsInterval is the time between two questions for what garbage collection has condemned.
	EpochsInterval time.Duration `koanf:"epochs_interval" help:"with marker_reads: epochs, the time between two looks at what garbage collection has condemned; a GET each"`
	// AcceptTimeout bounds one submission from its decode to its outcome.
	AcceptTimeout time.Duration `koanf:"accept_timeout" help:"longest time that one submission may take at the store"`
	// QualifyInterval is the time between two probes of the store.
	QualifyInterval time.Duration `koanf:"qualify_interval" help:"time between two probes of the store's semantics"`

	// ResolutionsInterval is the time between two looks at what operators decided about conflicts and senders.
	ResolutionsInterval time.Duration `koanf:"resolutions_interval" help:"time between two looks at what operators decided about conflicts and senders; a GET each"`

	// MemoryLimit is the Go runtime's soft limit; set by the command, not by New.
	MemoryLimit config.Bytes `koanf:"memory_limit" help:"soft limit of the process's memory; 0 derives it from the limits, the environment's GOMEMLIMIT wins"`

	Spool   SpoolConfig   `koanf:"spool" needs:"acceptance=local_spool"`
	Journal JournalConfig `koanf:"journal"`
	Orphans OrphansConfig `koanf:"orphans"`
	Limits  Limits        `koanf:"limits"`
	Notify  NotifyConfig  `koanf:"notify"`
}

// StoreConfig is the bucket, and what a collector wants of its policy.
type StoreConfig struct {
	s3.Config
	// BucketPolicy says what happens where the bucket's policy lets acceptance be changed.
	BucketPolicy string `koanf:"policy" help:"require, warn or off: what to do where the bucket's policy does not keep records from being overwritten and deleted; probed at the start and every qualify_interval"`
}

// Values of StoreConfig.BucketPolicy.
const (
	policyRequire = "require" // the collector is not ready
	policyWarn    = "warn"    // it serves; log, metric and status page say so
	policyOff     = "off"     // it is not probed
)

// bucket are the settings of the bucket, as other services have them.
func (c Config) bucket() bucket.Bucket {
	return bucket.Bucket{AuthorityID: c.AuthorityID, Store: c.Store.Config}
}

// Check refuses what no start can open, as bucket.Bucket does.
func (c Config) Check() error { return c.bucket().Check() }

// SpoolConfig is for acceptance local_spool.
type SpoolConfig struct {
	Dir string `koanf:"dir" help:"directory of the local spool (acceptance local_spool)" check:"dir"`
	// LandingIntervalMS is ingest.object_landing_interval_ms of the design.
	LandingIntervalMS int          `koanf:"object_landing_interval_ms" help:"time between two landings of the spool, milliseconds"`
	MaxBytes          config.Bytes `koanf:"max_bytes" help:"largest spool; beyond it batches are answered RETRY"`
}

// Limits bound what a collector accepts, and its memory.
type Limits struct {
	FrameBytes      config.Bytes `koanf:"frame_bytes" help:"largest frame"`
	DecodedBytes    config.Bytes `koanf:"decoded_bytes" help:"largest decoded payload of a frame"`
	Records         int          `koanf:"records" help:"most records of a frame"`
	SeriesLabels    int          `koanf:"series_labels" help:"most labels of a series"`
	LabelNameBytes  config.Bytes `koanf:"label_name_bytes" help:"longest label name"`
	LabelValueBytes config.Bytes `koanf:"label_value_bytes" help:"longest label value"`
	Ratio           int          `koanf:"ratio" help:"highest ratio of decoded to encoded bytes"`

	// Span bounds the hours that a batch touches: a late batch causes a rebuild of each of them.
	Span time.Duration `koanf:"span" help:"longest time between the first and the last sample of a frame"`

	// These bound the load of an agent on rollup workers and query nodes.
	BatchSeries  int           `koanf:"batch_series" help:"most series of a frame" reload:"yes"`
	SeriesBytes  config.Bytes  `koanf:"series_bytes" help:"most bytes of the label names and values of a series" reload:"yes"`
	AgentSeries  int           `koanf:"agent_series" help:"most active series of an agent, an estimate within a few percent; 0 is unlimited"`
	SeriesWindow time.Duration `koanf:"series_window" help:"how long a series counts as active after its last sample came, at least; at most twice as long"`
	// Future bounds how far samples may lie ahead of the later of this machine's clock and the store's.
	Future time.Duration `koanf:"future" help:"how far samples may lie ahead of now; 0 is without a bound" reload:"yes"`

	// InFlightBytes bounds the frames between admission and outcome, of all senders together.
	InFlightBytes config.Bytes `koanf:"in_flight_bytes" help:"bytes of admitted frames, all senders together"`
	// DecodingBytes bounds the decoded payloads that are alive at once.
	DecodingBytes config.Bytes `koanf:"decoding_bytes" help:"decoded bytes that are in memory at once; not less than decoded_bytes"`
	// Receivers bounds the connections that receive a large frame at once.
	Receivers int `koanf:"receivers" help:"gRPC connections that may receive a large frame at the same time; others wait by flow control"`
	// ShedAfter is how long a received frame waits for admission before it is answered RETRY.
	ShedAfter time.Duration `koanf:"shed_after" help:"how long a frame waits for room before it is answered RETRY" reload:"yes"`
	// RetryAfter is the hint in the answer to every shed batch.
	RetryAfter time.Duration `koanf:"retry_after" help:"after which time a shed sender may try again"`

	// BodyTimeout bounds the reading of one HTTP body.
	BodyTimeout time.Duration `koanf:"body_timeout" help:"how long an HTTP body may take to arrive; half of in_flight_bytes, at most, waits for bodies" reload:"yes"`
	// HelloTimeout bounds the time from the start of a stream to its hello.
	HelloTimeout         time.Duration `koanf:"hello_timeout" help:"how long a new stream may take to say hello" reload:"yes"`
	Streams              int           `koanf:"streams" help:"most gRPC streams, and most HTTP requests, at once" reload:"yes"`
	StreamBatches        int           `koanf:"stream_batches" help:"in-flight window of a stream, batches"`
	StreamBytes          config.Bytes  `koanf:"stream_bytes" help:"in-flight window of a stream, bytes"`
	AgentBatchesPerSec   float64       `koanf:"agent_batches_per_second" help:"most batches of one agent a second; 0 is unlimited" reload:"yes"`
	AgentBatchesBurst    int           `koanf:"agent_batches_burst" help:"burst of agent_batches_per_second" needs:"agent_batches_per_second" reload:"yes"`
	AgentsTracked        int           `koanf:"agents_tracked" help:"agents whose rate and series are remembered" needs:"agent_batches_per_second|agent_series"`
	StreamsPerConnection int           `koanf:"streams_per_connection" help:"most streams of one gRPC connection"`
}

// NotifyConfig is the shortcut to reconcilers.
type NotifyConfig struct {
	Addresses []string         `koanf:"addresses" help:"host:port of reconcilers that are notified of accepted batches" check:"address"`
	Client    rpc.ClientConfig `koanf:"client" needs:"addresses"`
	Queue     int              `koanf:"queue" help:"hints that wait for each reconciler; more are dropped, and its polls find what they were about" needs:"addresses"`
}

// DefaultConfig has the defaults of every setting.
func DefaultConfig() Config {
	f := frame.DefaultLimits()
	base := service.DefaultBase("127.0.0.1:4751", "127.0.0.1:4750")
	base.GRPC.MaxConnections, base.DrainTimeout = 8192, 30*time.Second
	return Config{
		Base: base, Store: StoreConfig{Config: s3.DefaultConfig(), BucketPolicy: policyWarn},
		Acceptance:  string(accept.ModeS3Manifest),
		Coordinator: CoordinatorConfig{Timeout: coordinator.DefaultTimeout}, TakeOver: 10 * time.Second,
		MarkerReads: markersAlways, EpochsInterval: 30 * time.Second,
		AcceptTimeout:   30 * time.Second,
		QualifyInterval: 24 * time.Hour, ResolutionsInterval: 30 * time.Second,
		Spool:   SpoolConfig{LandingIntervalMS: 1000, MaxBytes: 1 << 30},
		Orphans: OrphansConfig{ReportInterval: time.Minute},
		Journal: JournalConfig{Linger: 50 * time.Millisecond, Idle: 5 * time.Minute, Entries: commit.DefaultEntries, FramesMemory: 64 << 20},
		Limits: Limits{
			FrameBytes: config.Bytes(f.EncodedBytes), DecodedBytes: config.Bytes(f.DecodedBytes), Records: f.Records,
			SeriesLabels: f.SeriesLabels, LabelNameBytes: config.Bytes(f.LabelNameBytes),
			LabelValueBytes: config.Bytes(f.LabelValueBytes), Ratio: f.Ratio, Span: 48 * time.Hour,
			BatchSeries: 200_000, SeriesBytes: 16 << 10, AgentSeries: 200_000, SeriesWindow: time.Hour, Future: time.Hour,
			InFlightBytes: 64 << 20, DecodingBytes: 64 << 20, Receivers: 6,
			ShedAfter: 2 * time.Second, RetryAfter: time.Second,
			BodyTimeout: time.Minute, HelloTimeout: 10 * time.Second, Streams: 4096, StreamBatches: 64, StreamBytes: 8 << 20,
			AgentBatchesBurst: 100, AgentsTracked: 10_000, StreamsPerConnection: 100,
		},
		Notify: NotifyConfig{Queue: 4096},
	}
}

// Validate checks everything except the store.
func (c Config) Validate() error {
	l := c.Limits
	errs := []error{c.Base.Validate(), c.Journal.validate(), c.validateGlobal()}
	positive := func(name string, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s must be positive", name))
		}
	}
	positive("accept_timeout", c.AcceptTimeout > 0)
	if c.InlineBelow < 0 || c.InlineBelow > accept.MaxInlineFrame {
		errs = append(errs, fmt.Errorf("inline_below is %v, not 0 to %v", c.InlineBelow, config.Bytes(accept.MaxInlineFrame)))
	}
	positive("qualify_interval", c.QualifyInterval > 0)
	if c.Orphans.ReportInterval < 0 {
		errs = append(errs, errors.New("orphans.report_interval must not be negative"))
	}
	positive("resolutions_interval", c.ResolutionsInterval > 0)
	positive("epochs_interval", c.EpochsInterval > 0)
	if !c.validMarkers() {
		errs = append(errs, fmt.Errorf("marker_reads %q: want %s, or, with acceptance %s, %s", c.MarkerReads, markersAlways, accept.ModeS3Manifest, markersEpochs))
	}
	positive("limits.frame_bytes", l.FrameBytes > 0)
	positive("limits.decoded_bytes", l.DecodedBytes > 0)
	positive("limits.records", l.Records > 0)
	positive("limits.series_labels", l.SeriesLabels > 0)
	positive("limits.label_name_bytes", l.LabelNameBytes > 0)
	positive("limits.label_value_bytes", l.LabelValueBytes > 0)
	positive("limits.ratio", l.Ratio > 0)
	positive("limits.span", l.Span > 0)
	positive("limits.batch_series", l.BatchSeries > 0)
	positive("limits.series_bytes", l.SeriesBytes > 0)
	positive("limits.series_window", l.SeriesWindow > 0)
	positive("limits.receivers", l.Receivers > 0)
	positive("limits.shed_after", l.ShedAfter > 0)
	positive("limits.retry_after", l.RetryAfter > 0)
	positive("limits.body_timeout", l.BodyTimeout > 0)
	positive("limits.hello_timeout", l.HelloTimeout > 0)
	positive("limits.streams", l.Streams > 0)
	positive("limits.streams_per_connection", l.StreamsPerConnection > 0)
	positive("limits.stream_batches", l.StreamBatches > 0)
	positive("limits.stream_bytes", l.StreamBytes > 0)
	positive("limits.agents_tracked", l.AgentsTracked > 0)
	positive("notify.queue", c.Notify.Queue > 0)
	if c.GRPC.Listen == "" {
		errs = append(errs, errors.New("grpc.listen: is needed"))
	}
	if l.InFlightBytes < l.FrameBytes {
		errs = append(errs, fmt.Errorf("limits.in_flight_bytes %v is less than limits.frame_bytes %v", l.InFlightBytes, l.FrameBytes))
	}
	if l.DecodingBytes < l.DecodedBytes {
		errs = append(errs, fmt.Errorf("limits.decoding_bytes %v is less than limits.decoded_bytes %v", l.DecodingBytes, l.DecodedBytes))
	}
	if l.FrameBytes > 1<<30 || l.DecodedBytes > 1<<31-1 {
		errs = append(errs, errors.New("limits.frame_bytes may be 1 GiB, limits.decoded_bytes 2 GiB at most"))
	}
	if l.AgentBatchesPerSec < 0 || l.AgentBatchesPerSec > 0 && l.AgentBatchesBurst <= 0 {
		errs = append(errs, errors.New("limits.agent_batches_per_second must not be negative, and its burst must be positive"))
	}
	if l.AgentSeries < 0 || l.Future < 0 {
		errs = append(errs, errors.New("limits.agent_series and limits.future must not be negative; 0 is without a bound"))
	}
	switch c.Store.BucketPolicy {
	case policyRequire, policyWarn, policyOff:
	default:
		errs = append(errs, fmt.Errorf("store.policy %q: want require, warn or off", c.Store.BucketPolicy))
	}
	switch accept.Mode(c.Acceptance) {
	case accept.ModeS3Manifest, accept.ModeGlobal:
	case accept.ModeLocalSpool:
		if c.Spool.Dir == "" || c.Spool.LandingIntervalMS <= 0 || c.Spool.MaxBytes <= 0 {
			errs = append(errs, errors.New("acceptance local_spool needs spool.dir, and a positive landing interval and size"))
		}
	default:
		errs = append(errs, fmt.Errorf("acceptance %q: want s3_manifest, local_spool or global", c.Acceptance))
	}
	return errors.Join(errs...)
}

// checkSpan refuses a batch that spans too many hours. The answer depends on the frame alone, so
// it is the same at every attempt.
func (l Limits) checkSpan(s frame.Summary) error {
	if span := uint64(s.MaxTime) - uint64(s.MinTime); span > uint64(l.Span) {
		return &frame.Error{Reason: frame.TimeSpanTooWide, Detail: fmt.Sprintf("samples from %d to %d Unix nanoseconds, at most %v apart", s.MinTime, s.MaxTime, l.Span)}
	}
	return nil
}

// frameLimits are the limits in the form of the decoder.
func (l Limits) frameLimits() frame.Limits {
	return frame.Limits{
		EncodedBytes: l.FrameBytes.Int(), DecodedBytes: l.DecodedBytes.Int(), Records: l.Records,
		SeriesLabels: l.SeriesLabels, LabelNameBytes: l.LabelNameBytes.Int(),
		LabelValueBytes: l.LabelValueBytes.Int(), Ratio: l.Ratio,
	}
}

// storePolicy leaves time for further attempts within a submission, and ends them before the
// submission's deadline: so the sender's answer names the fault of the store and not only
// a deadline.
func (c Config) storePolicy() objstore.Policy {
	p := c.Store.Policy()
	p.Timeout = min(p.Timeout, c.AcceptTimeout/3)
	p.Retry.Elapsed = c.AcceptTimeout * 3 / 4
	return p
}
