package ingest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// answer of the HTTP endpoint.
type answer struct {
	code   int
	header http.Header
	body   map[string]any
}

func (c *collector) post(t testing.TB, f []byte, change func(*http.Request)) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(bound(t), http.MethodPost, "http://"+c.HTTPAddr()+"/v1/batches", bytes.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", frame.MediaType)
	if change != nil {
		change(req)
	}
	return do(t, http.DefaultClient, req)
}

func do(t testing.TB, client *http.Client, req *http.Request) answer {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{code: resp.StatusCode, header: resp.Header, body: map[string]any{}}
	if err := json.Unmarshal(b, &a.body); err != nil {
		t.Fatalf("%d: body %q: %v", resp.StatusCode, b, err)
	}
	return a
}

func errorInfo(err error) map[string]string {
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.GetMetadata()
		}
	}
	return nil
}

func TestUnaryOutcomes(t *testing.T) {
	c := start(t, newStore(), nil)
	first, other := encode(t, boot, 1, 10, 0), encode(t, boot, 1, 10, 99)
	for i, duplicate := range []bool{false, true, true} {
		r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: first, SpoolId: "s"})
		if err != nil || r.GetDuplicate() != duplicate || r.GetAcceptance().GetCollectorId() != "collector-a" {
			t.Fatalf("submission %d: %v, %v", i, r, err)
		}
	}
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: other, SpoolId: "s"})
	md := errorInfo(err)
	if status.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != ingest.ReasonIdentityConflict ||
		md["accepted_sha256"] != identity.Sum(first).String() || md["submitted_sha256"] != identity.Sum(other).String() ||
		md["collector_id"] != "collector-a" || md["accepted_at"] == "" || md["quarantine_key"] == "" {
		t.Fatalf("conflict: %v %v", err, md)
	}
	_, err = c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, 11, 1, 0), SpoolId: "another"})
	if status.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "BOOT_ID_CLASH" {
		t.Fatalf("boot clash: %v", err)
	}
}

func TestHTTPOutcomes(t *testing.T) {
	c := start(t, newStore(), nil)
	first, other := encode(t, boot, 1, 10, 0), encode(t, boot, 1, 10, 99)
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "s") }
	for i, duplicate := range []bool{false, true} {
		a := c.post(t, first, spool)
		if a.code != 200 || a.body["duplicate"] != duplicate || a.body["frame_sha256"] != identity.Sum(first).String() ||
			a.header.Get("Content-Type") != "application/json" {
			t.Fatalf("submission %d: %+v", i, a)
		}
	}
	chunked := c.post(t, first, func(r *http.Request) { spool(r); r.ContentLength, r.Body = -1, io.NopCloser(bytes.NewReader(first)) })
	if chunked.code != 200 || chunked.body["duplicate"] != true {
		t.Fatalf("chunked: %+v", chunked)
	}
	a := c.post(t, other, spool)
	if a.code != 409 || a.body["error"] != "identity_conflict" || a.body["accepted_sha256"] != identity.Sum(first).String() ||
		a.body["submitted_sha256"] != identity.Sum(other).String() || a.body["collector_id"] != "collector-a" {
		t.Fatalf("conflict: %+v", a)
	}
	if a := c.post(t, encode(t, boot, 11, 1, 0), nil); a.code != 400 || a.body["error"] != "boot_id_clash" {
		t.Fatalf("boot clash: %+v", a)
	}
}

// corrupt changes one byte.
func corrupt(f []byte, at int) []byte {
	f = bytes.Clone(f)
	f[at] ^= 0x40
	return f
}

// TestBadFramesWriteNothing sends every bad frame by stream, unary call and HTTP.
func TestBadFramesWriteNothing(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) {
		c.Limits.FrameBytes, c.Limits.Records, c.Limits.LabelValueBytes = 64<<10, 1000, 64
	})
	s, _ := c.mustOpen(t, boot, 0)
	good := encode(t, boot, 1, 10, 0)
	before := contents(t, c.store)
	for name, tc := range map[string]struct {
		frame  []byte
		reason frame.Reason
		code   int
	}{
		"empty":             {nil, frame.Truncated, 400},
		"garbage":           {[]byte(strings.Repeat("garbage ", 50)), frame.BadMagic, 400},
		"header cut":        {good[:20], frame.Truncated, 400},
		"payload cut":       {good[:len(good)-3], frame.Truncated, 400},
		"trailing":          {append(bytes.Clone(good), 0), frame.TrailingBytes, 400},
		"header bit flip":   {corrupt(good, 22), frame.ChecksumMismatch, 400},
		"payload bit flip":  {corrupt(good, len(good)-1), frame.ChecksumMismatch, 400},
		"version":           {reheader(good, func(b []byte) { b[4] = 9 }), frame.UnsupportedVersion, 400},
		"identity mismatch": {reheader(good, func(b []byte) { b[20]++; b[28]++ }), frame.IdentityMismatch, 400},
		"count mismatch":    {reheader(good, func(b []byte) { b[28]++ }), frame.IdentityMismatch, 400},
		"bomb":              {declare(t, 60<<20), frame.RatioTooHigh, 400},
		"too large decoded": {declare(t, 65<<20), frame.DecodedTooLarge, 413},
		"too large":         {bigFrame(t, boot, 1, 120<<10), frame.TooLarge, 413},
		"too many records":  {encode(t, boot, 1, 1001, 0), frame.TooManyRecords, 400},
		"wide":              {encodeTimes(t, boot, 0, 48*int64(time.Hour)+1), frame.TimeSpanTooWide, 400},
		"all of time":       {encodeTimes(t, boot, math.MinInt64, math.MaxInt64), frame.TimeSpanTooWide, 400},
		"long label":        {encodeLabel(t, boot, strings.Repeat("x", 65)), frame.BadLabels, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.ask(tc.frame)
			if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != string(tc.reason) {
				t.Errorf("stream: %v", r)
			}
			_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: tc.frame})
			if status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != string(tc.reason) {
				t.Errorf("unary: %v", err)
			}
			a := c.post(t, tc.frame, nil)
			if a.code != tc.code || a.body["error"] != strings.ToLower(string(tc.reason)) {
				t.Errorf("HTTP: %+v", a)
			}
		})
	}
	if after := contents(t, c.store); !maps.Equal(before, after) {
		t.Errorf("bad frames wrote: %v, before %v", after, before)
	}
	if r := s.ask(good); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("a good frame after all that: %v", r)
	}
	s.done()
}

func TestHTTPRefusesBeforeItReads(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.FrameBytes = 64 << 10 })
	good := encode(t, boot, 1, 10, 0)
	before := contents(t, c.store)
	for name, tc := range map[string]struct {
		change func(*http.Request)
		code   int
		error  string
	}{
		"gzip":          {func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 415, "content_encoding"},
		"two encodings": {func(r *http.Request) { r.Header["Content-Encoding"] = []string{"identity", "zstd"} }, 415, "content_encoding"},
		"text":          {func(r *http.Request) { r.Header.Set("Content-Type", "text/json") }, 415, "content_type"},
		"no type":       {func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "content_type"},
		"long chunked":  {func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(endless{}) }, 413, "frame_too_large"},
		"long": {func(r *http.Request) {
			r.ContentLength, r.Body = 65<<10, io.NopCloser(io.LimitReader(endless{}, 65<<10))
		}, 413, "frame_too_large"},
		"long spool id": {func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, strings.Repeat("x", 65)) }, 400, "bad_spool_id"},
		"method":        {func(r *http.Request) { r.Method = http.MethodPut }, 405, "method_not_allowed"},
		"path":          {func(r *http.Request) { r.URL.Path = "/v1/elsewhere" }, 404, "not_found"},
		"parameter of typ": {func(r *http.Request) {
			r.Header.Set("Content-Type", frame.MediaType+"; v=1")
			r.Body = http.NoBody
			r.ContentLength = 0
		}, 400, "frame_truncated"},
	} {
		a := c.post(t, good, tc.change)
		if a.code != tc.code || a.body["error"] != tc.error {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if after := contents(t, c.store); !maps.Equal(before, after) {
		t.Errorf("refused requests wrote: %v", after)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
