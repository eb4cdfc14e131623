package s3

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

func TestValidate(t *testing.T) {
	if err := testConfig("http://127.0.0.1:4790").Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no bucket":            {func(c *Config) { c.Bucket = "" }, "empty"},
		"access point":         {func(c *Config) { c.Bucket = "arn:aws:s3:us-west-2:123456789012:accesspoint/one" }, "ARN"},
		"multi-region":         {func(c *Config) { c.Bucket = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap" }, "ARN"},
		"multi-region alias":   {func(c *Config) { c.Bucket = "mfzwi23gnjvgw.mrap" }, "alias"},
		"access point alias":   {func(c *Config) { c.Bucket = "one-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias" }, "alias"},
		"directory bucket":     {func(c *Config) { c.Bucket = "one--usw2-az1--x-s3" }, "directory"},
		"access point host":    {func(c *Config) { c.Endpoint = "https://x.accesspoint.s3-global.amazonaws.com" }, "access point"},
		"bucket with a slash":  {func(c *Config) { c.Bucket = "a/b" }, "want 3 to 63"},
		"endpoint":             {func(c *Config) { c.Endpoint = "127.0.0.1:4790" }, "endpoint"},
		"endpoint with a user": {func(c *Config) { c.Endpoint = "http://u:hunter2@h" }, "no user"},
		"prefix":               {func(c *Config) { c.Prefix = "tenant" }, "slash"},
		"prefix of dots":       {func(c *Config) { c.Prefix = "../" }, "dots"},
		"half a key":           {func(c *Config) { c.SecretAccessKey = "" }, "together"},
		"no timeout":           {func(c *Config) { c.RequestTimeout = 0 }, "request_timeout"},
		"no attempts":          {func(c *Config) { c.Attempts = 0 }, "attempts"},
		"no connections":       {func(c *Config) { c.MaxConnections = 0 }, "max_connections"},
	} {
		cfg := testConfig("http://127.0.0.1:4790")
		c.change(&cfg)
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want a word of %q", name, err, c.says)
		}
	}
}

func TestEndpointsOfAWS(t *testing.T) {
	cfg := testConfig("")
	cfg.PathStyle = false
	for region, want := range map[string]string{
		"us-east-1":  "https://bucket.s3.us-east-1.amazonaws.com",
		"eu-west-1":  "https://bucket.s3.eu-west-1.amazonaws.com",
		"cn-north-1": "https://bucket.s3.cn-north-1.amazonaws.com.cn",
	} {
		cfg.Region, cfg.SecretAccessKey = region, config.Secret("x")
		s, err := New(t.Context(), cfg, Options{})
		if err != nil || strings.TrimSuffix(s.base.String(), "/") != want {
			t.Errorf("%s: %v, %v, want %s", region, s.base.String(), err, want)
		}
	}
}

// TestPlaces: all names of AWS S3 in a partition are one endpoint; elsewhere it is the host that answers.
func TestPlaces(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": objstore.EndpointAWS,
		"https://s3.dualstack.us-east-1.amazonaws.com":                 objstore.EndpointAWS,
		"https://bucket.vpce-1a2b3c4d.s3.us-east-1.vpce.amazonaws.com": objstore.EndpointAWS,
		"https://s3.cn-north-1.amazonaws.com.cn":                       objstore.EndpointAWSChina,
		"https://amazonaws.com.example":                                "amazonaws.com.example",
		"http://MinIO.example:9000/":                                   "minio.example:9000",
		"https://minio.example:443/s3/":                                "minio.example/s3",
		"http://10.0.0.1:80":                                           "10.0.0.1",
	} {
		cfg := testConfig(endpoint)
		cfg.Prefix = "prod/"
		s, err := New(t.Context(), cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if p := s.Place(); p != (objstore.Place{Endpoint: want, Region: "us-east-1", Bucket: "bucket", Prefix: "prod/"}) {
			t.Errorf("%q: %+v, want %s", endpoint, p, want)
		}
	}
}

// TestReplicasSaySo: the mark of a replication's target is read, that of its source is none.
func TestReplicasSaySo(t *testing.T) {
	for status, want := range map[string]bool{"REPLICA": true, "COMPLETED": false, "": false} {
		s := open(t, func(w http.ResponseWriter, r *http.Request) {
			if status != "" {
				w.Header().Set("x-amz-replication-status", status)
			}
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Content-Length", "1")
			if r.Method == http.MethodGet {
				io.WriteString(w, "x")
			}
		})
		info, err := s.Head(t.Context(), "k")
		if err != nil || info.Replica != want {
			t.Errorf("head, %q: %+v, %v", status, info, err)
		}
		if _, info, err = s.Get(t.Context(), "k", objstore.GetOptions{}); err != nil || info.Replica != want {
			t.Errorf("get, %q: %+v, %v", status, info, err)
		}
	}
}
