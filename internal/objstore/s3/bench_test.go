package s3

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// stub answers requests without the cost of a server: what is left is the client's.
type stub struct{}

func (stub) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	return &http.Response{
		StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r, Body: http.NoBody,
		Header: http.Header{"Etag": {`"e"`}, "Date": {"Thu, 01 Jan 2026 00:00:00 GMT"}},
	}, nil
}

// BenchmarkCreate is a conditional create: the client alone, and over a loopback
// connection to a server that does nothing; beside it the SDK's own client.
func BenchmarkCreate(b *testing.B) {
	for _, size := range []int{500, 8 << 10} {
		body := bytes.Repeat([]byte("x"), size)
		sum := identity.Sum(body)
		b.Run(fmt.Sprintf("client=ours/net=no/bytes=%d", size), func(b *testing.B) {
			benchOurs(b, testConfig("http://127.0.0.1:1"), stub{}, body, sum)
		})
		b.Run(fmt.Sprintf("client=sdk/net=no/bytes=%d", size), func(b *testing.B) {
			benchSDK(b, testConfig("http://127.0.0.1:1"), stub{}, body, sum)
		})
		b.Run(fmt.Sprintf("client=ours/net=loopback/bytes=%d", size), func(b *testing.B) {
			benchOurs(b, testConfig(nothing(b)), nil, body, sum)
		})
		b.Run(fmt.Sprintf("client=sdk/net=loopback/bytes=%d", size), func(b *testing.B) {
			cfg := testConfig(nothing(b))
			t, err := cfg.transport()
			if err != nil {
				b.Fatal(err)
			}
			benchSDK(b, cfg, t, body, sum)
		})
	}
}

func benchOurs(b *testing.B, cfg Config, rt http.RoundTripper, body []byte, sum identity.Digest) {
	s, err := New(b.Context(), cfg, Options{Transport: rt})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Create(b.Context(), "accepted/v1/agent=6869/boot=00/1-2.json", body, objstore.PutOptions{SHA256: sum}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchSDK(b *testing.B, cfg Config, rt http.RoundTripper, body []byte, sum identity.Digest) {
	c := awss3.New(awss3.Options{
		Region: cfg.Region, BaseEndpoint: &cfg.Endpoint, UsePathStyle: true, Retryer: aws.NopRetryer{},
		Credentials:                credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey.Reveal(), ""),
		HTTPClient:                 &http.Client{Transport: rt},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	})
	b.ReportAllocs()
	for b.Loop() {
		_, err := c.PutObject(context.Background(), &awss3.PutObjectInput{
			Bucket: &cfg.Bucket, Key: aws.String("accepted/v1/agent=6869/boot=00/1-2.json"), Body: bytes.NewReader(body),
			IfNoneMatch: aws.String("*"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// nothing serves a fixed success to every request, with a scan of its header alone.
func nothing(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(c)
		}
	}()
	return "http://" + l.Addr().String()
}

func answerAll(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		length := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			if bytes.HasPrefix(line, []byte("Content-Length: ")) {
				fmt.Sscan(string(line[16:]), &length)
			}
		}
		r.Discard(length)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n")
	}
}

// BenchmarkList reads a full page of 1,000 keys without a network.
func BenchmarkList(b *testing.B) {
	var page bytes.Buffer
	page.WriteString(`<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>`)
	for i := range objstore.MaxListLimit {
		fmt.Fprintf(&page, `<Contents><Key>accepted/v1/agent%%3D6869/boot%%3D00/%020d-%020d.json</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag><Size>512</Size><StorageClass>STANDARD</StorageClass></Contents>`, i, i)
	}
	page.WriteString(`</ListBucketResult>`)
	s, err := New(b.Context(), testConfig("http://127.0.0.1:1"), Options{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Request: r, Header: http.Header{}, ContentLength: int64(page.Len()),
			Body: io.NopCloser(bytes.NewReader(page.Bytes()))}, nil
	})})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		p, err := s.List(b.Context(), objstore.ListOptions{Prefix: "accepted/v1/"})
		if err != nil || len(p.Objects) != objstore.MaxListLimit {
			b.Fatal(len(p.Objects), err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
