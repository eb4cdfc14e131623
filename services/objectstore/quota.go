package objectstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"
)

// BucketQuota bounds what a bucket holds.
type BucketQuota struct {
	Bucket  string       `koanf:"bucket"`
	Bytes   config.Bytes `koanf:"bytes"`   // of all versions and of the parts of open uploads; 0: no bound
	Objects int64        `koanf:"objects"` // versions; 0: no bound
}

func checkQuotas(list []BucketQuota) (errs []error) {
	seen := map[string]bool{}
	for _, q := range list {
		switch {
		case !s3api.ValidBucket(q.Bucket):
			errs = append(errs, fmt.Errorf("quotas: %q is no bucket name", q.Bucket))
		case seen[q.Bucket]:
			errs = append(errs, fmt.Errorf("quotas: %q is there twice", q.Bucket))
		case q.Bytes < 0 || q.Objects < 0:
			errs = append(errs, fmt.Errorf("quotas: %q: want no negative number", q.Bucket))
		}
		seen[q.Bucket] = true
	}
	return errs
}

// setQuotas sets the quotas of the settings. A bucket that is not there yet is none of an error: who makes it later sets
// its quota, or restarts.
func (s *Service) setQuotas(ctx context.Context, eng *engine.Engine) error {
	for _, q := range s.cfg.Quotas {
		want := engine.Quota{Bytes: int64(q.Bytes), Objects: q.Objects}
		b, err := eng.Bucket(q.Bucket)
		if errors.Is(err, engine.ErrNoBucket) {
			s.deps.Telemetry.Log.Warn("a quota is for a bucket that is not there", "bucket", q.Bucket)
			continue
		}
		if b.Quota() == want {
			continue
		}
		if err = eng.SetQuota(ctx, q.Bucket, want); errors.Is(err, engine.ErrFull) {
			s.deps.Telemetry.Log.Error("a quota could not be set", "bucket", q.Bucket, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// UsageReport is the answer of the admin path /usage.
type UsageReport struct {
	Buckets []engine.Usage `json:"buckets"`
}

// maxQuotaBody bounds the body of a request that sets a quota, bytes.
const maxQuotaBody = 4 << 10

func quotaRoutes(eng *engine.Engine) []web.Route {
	return []web.Route{
		{Pattern: "GET /usage", About: "what each bucket holds, and its quota", Roles: []web.Role{web.RoleOperator},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeUsage(w, eng) })},
		{Pattern: "PUT /quotas/{bucket}", About: "set the quota of a bucket: {\"bytes\", \"objects\"}, 0 is no bound", Roles: []web.Role{web.RoleOperator}, MaxBody: maxQuotaBody,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { putQuota(w, r, eng) })},
	}
}

func writeUsage(w http.ResponseWriter, eng *engine.Engine) {
	out := UsageReport{Buckets: eng.Usage()}
	if out.Buckets == nil {
		out.Buckets = []engine.Usage{}
	}
	web.WriteJSON(w, http.StatusOK, out)
}

func putQuota(w http.ResponseWriter, r *http.Request, eng *engine.Engine) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		web.WriteError(w, http.StatusBadRequest, "bad_request", err.Error(), nil)
		return
	}
	var q engine.Quota
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil || q.Bytes < 0 || q.Objects < 0 {
		web.WriteError(w, http.StatusBadRequest, "bad_request", "want a JSON object with bytes and objects, which are not negative", nil)
		return
	}
	switch err := eng.SetQuota(r.Context(), r.PathValue("bucket"), q); {
	case errors.Is(err, engine.ErrNoBucket):
		web.WriteError(w, http.StatusNotFound, "not_found", err.Error(), nil)
	case err != nil:
		web.WriteError(w, http.StatusServiceUnavailable, "unavailable", err.Error(), nil)
	default:
		writeUsage(w, eng)
	}
}

// bucketCollector gives the figures of each bucket. There are at most as many as the store allows buckets.
type bucketCollector struct {
	m                           *metrics
	bytes, objects, quota, most *prometheus.Desc
}

func newBucketCollector(m *metrics) *bucketCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("lightmetrics_objectstore_bucket_"+name, help, []string{"bucket"}, nil)
	}
	return &bucketCollector{m,
		desc("bytes", "Bytes of all versions of a bucket and of the parts of its open uploads."),
		desc("objects", "Objects of a bucket, all versions."),
		desc("quota_bytes", "Bytes that a bucket may hold; only with a quota."),
		desc("quota_objects", "Objects that a bucket may hold; only with a quota.")}
}

// Describe implements prometheus.Collector.
func (c *bucketCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.bytes, c.objects, c.quota, c.most} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *bucketCollector) Collect(ch chan<- prometheus.Metric) {
	eng := c.m.engine.Load()
	if eng == nil {
		return
	}
	for _, u := range eng.Usage() {
		give := func(d *prometheus.Desc, v int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), u.Bucket)
		}
		give(c.bytes, u.Bytes)
		give(c.objects, u.Objects)
		if u.Quota.Bytes > 0 {
			give(c.quota, u.Quota.Bytes)
		}
		if u.Quota.Objects > 0 {
			give(c.most, u.Quota.Objects)
		}
	}
}
