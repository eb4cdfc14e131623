package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

var descCertificate = prometheus.NewDesc("lightmetrics_tls_certificate_expiry_timestamp_seconds",
	"When a certificate that this process shows, as a server or a client, ends; Unix seconds.", []string{"file"}, nil)

// certificateCollector shows the certificates of this process, which services share.
type certificateCollector struct{}

// Describe implements prometheus.Collector.
func (certificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- descCertificate }

// Collect implements prometheus.Collector.
func (certificateCollector) Collect(ch chan<- prometheus.Metric) {
	for _, c := range tlsfile.Certificates() {
		ch <- prometheus.MustNewConstMetric(descCertificate, prometheus.GaugeValue, float64(c.NotAfter.Unix()), c.File)
	}
}
