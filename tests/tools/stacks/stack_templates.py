"""Templates in the shape of the three stacks: network, storage, cluster, joined by exports."""

from __future__ import annotations

from typing import Any

Template = dict[str, Any]


def _import(name: str) -> dict[str, str]:
    return {"Fn::ImportValue": name}


def network() -> Template:
    return {
        "Resources": {
            "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
            "Subnet": {
                "Type": "AWS::EC2::Subnet",
                "Properties": {
                    "VpcId": {"Ref": "Vpc"},
                    "CidrBlock": "10.0.0.0/18",
                    "AvailabilityZoneId": "usw2-az4",
                    "MapPublicIpOnLaunch": False,
                },
            },
            "Group": {
                "Type": "AWS::EC2::SecurityGroup",
                "Properties": {"GroupDescription": "Nodes", "VpcId": {"Ref": "Vpc"}},
            },
        },
        "Outputs": {
            "ExportSubnet": {"Value": {"Ref": "Subnet"}, "Export": {"Name": "esm2:Subnet"}},
            "ExportGroup": {
                "Value": {"Fn::GetAtt": ["Group", "GroupId"]},
                "Export": {"Name": "esm2:Group"},
            },
            "VpcId": {"Value": {"Ref": "Vpc"}},
        },
    }


def storage() -> Template:
    return {
        "Resources": {
            "Key": {
                "Type": "AWS::KMS::Key",
                "Properties": {"EnableKeyRotation": True},
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
            },
            "Lustre": {
                "Type": "AWS::FSx::FileSystem",
                "Properties": {
                    "FileSystemType": "LUSTRE",
                    "StorageType": "SSD",
                    "StorageCapacity": 1200,
                    "SubnetIds": [_import("esm2:Subnet")],
                    "SecurityGroupIds": [_import("esm2:Group")],
                    "KmsKeyId": {"Fn::GetAtt": ["Key", "Arn"]},
                    "LustreConfiguration": {
                        "DeploymentType": "PERSISTENT_2",
                        "PerUnitStorageThroughput": 250,
                        "DataCompressionType": "LZ4",
                        "EfaEnabled": False,
                    },
                },
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
            },
            "Data": {
                "Type": "AWS::S3::Bucket",
                "Properties": {
                    "BucketName": "esm2-data",
                    "VersioningConfiguration": {"Status": "Enabled"},
                },
                "DeletionPolicy": "Delete",
                "UpdateReplacePolicy": "Delete",
            },
            "Link": {
                "Type": "AWS::FSx::DataRepositoryAssociation",
                "Properties": {
                    "FileSystemId": {"Ref": "Lustre"},
                    "FileSystemPath": "/data",
                    "DataRepositoryPath": "s3://esm2-data",
                    "S3": {"AutoImportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]}},
                },
                "DeletionPolicy": "Delete",
                "UpdateReplacePolicy": "Delete",
            },
            "Database": {
                "Type": "AWS::RDS::DBInstance",
                "Properties": {
                    "MasterUsername": "slurm",
                    "StorageEncrypted": True,
                    "AllocatedStorage": "20",
                    "BackupRetentionPeriod": 7,
                },
                "DeletionPolicy": "Snapshot",
                "UpdateReplacePolicy": "Snapshot",
            },
        },
        "Outputs": {"LustreId": {"Value": {"Ref": "Lustre"}, "Export": {"Name": "esm2:Lustre"}}},
    }


def hyperpod() -> Template:
    return {
        "Resources": {
            "Cluster": {
                "Type": "AWS::SageMaker::Cluster",
                "Properties": {
                    "ClusterName": "esm2",
                    "VpcConfig": {
                        "Subnets": [_import("esm2:Subnet")],
                        "SecurityGroupIds": [_import("esm2:Group")],
                    },
                    "InstanceGroups": [
                        {
                            "InstanceGroupName": "workers",
                            "InstanceCount": 2,
                            "LifeCycleConfig": {
                                "SourceS3Uri": "s3://sagemaker-esm2/lifecycle/0123/"
                            },
                        }
                    ],
                    "NodeRecovery": "Automatic",
                },
            },
            "Image": {
                "Type": "AWS::ECR::Repository",
                "Properties": {"RepositoryName": "esm2/training"},
            },
            "Role": {
                "Type": "AWS::IAM::Role",
                "Properties": {"AssumeRolePolicyDocument": {}, "RoleName": "esm2"},
            },
        }
    }
